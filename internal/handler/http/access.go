package http

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"
)

// access keeps a client for the certificates and secrets of the moment.
type access struct {
	o Options

	mu     sync.Mutex
	client *http.Client // guarded by mu
	pem    pemFiles     // that it was made from; guarded by mu
	known  secrets      // guarded by mu
	asked  time.Time    // guarded by mu
	told   string       // what was warned of and still holds; guarded by mu
}

// secrets are what the service knows the caller by.
type secrets struct {
	token string
	hmac  []string
}

// pemFiles are the contents of the three files.
type pemFiles struct{ ca, cert, key string }

// askEvery is how often secrets and files are looked at.
const askEvery = time.Second

func newAccess(o Options) (*access, error) {
	a := &access{o: o, asked: time.Now(), known: o.secrets()}
	var err error
	if a.pem, err = o.read(); err != nil {
		return nil, err
	}
	a.client, err = newClient(o, a.pem)
	return a, err
}

// now is a client, and what it says of itself.
func (a *access) now() (*http.Client, secrets) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.asked) < askEvery {
		return a.client, a.known
	}
	a.asked, a.known = time.Now(), a.o.secrets()
	problem := ""
	if err := a.renew(); err != nil { // of two files that belong together the second may not be written yet
		problem = err.Error()
	}
	if problem != "" && problem != a.told && a.o.Warn != nil {
		a.o.Warn(fmt.Errorf("%s; the former certificates stay in use", problem))
	}
	a.told = problem
	return a.client, a.known
}

// renew makes a client of what stands in the files now. The caller holds mu.
func (a *access) renew() error {
	pem, err := a.o.read()
	if err != nil || pem == a.pem {
		return err
	}
	client, err := newClient(a.o, pem)
	if err != nil {
		return err
	}
	a.client.CloseIdleConnections()
	a.client, a.pem = client, pem
	return nil
}

func (o Options) secrets() (s secrets) {
	if o.Token != nil {
		s.token = o.Token()
	}
	if o.Secrets != nil {
		s.hmac = o.Secrets()
	}
	return s
}

func (o Options) read() (p pemFiles, err error) {
	for _, f := range []struct {
		name string
		to   *string
	}{{o.CAFile, &p.ca}, {o.CertFile, &p.cert}, {o.KeyFile, &p.key}} {
		if f.name == "" {
			continue
		}
		content, err := os.ReadFile(f.name)
		if err != nil {
			return p, err
		}
		*f.to = string(content)
	}
	return p, nil
}

// newClient makes a client that follows no redirect: what was signed for one address must not go to another.
func newClient(o Options, pem pemFiles) (*http.Client, error) {
	config, err := o.tls(pem)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, max(1, o.Concurrency)
	transport.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		if resp.StatusCode == http.StatusProxyAuthRequired || resp.StatusCode == http.StatusForbidden {
			return &proxyError{resp.Status}
		}
		return nil
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// proxyError says that the proxy on the way (HTTPS_PROXY) does not let us through.
type proxyError struct{ status string }

// Error is what it answered.
func (e *proxyError) Error() string { return "the proxy on the way answered " + e.status }

func (o Options) tls(pem pemFiles) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if pem.ca != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(pem.ca)) {
			return nil, errors.New(o.CAFile + " holds no certificate in PEM form")
		}
	}
	if pem.cert != "" || pem.key != "" {
		pair, err := tls.X509KeyPair([]byte(pem.cert), []byte(pem.key))
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", o.CertFile, o.KeyFile, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
