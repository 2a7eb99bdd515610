package http

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// access keeps a client for the certificates and secrets of the moment.
type access struct {
	o     Options
	certs certs.Store

	mu      sync.Mutex
	clients clients     // guarded by mu
	config  *tls.Config // that they were made of; guarded by mu
	known   secrets     // guarded by mu
	asked   time.Time   // guarded by mu
}

// clients are the two ways to call.
type clients struct {
	kept  *http.Client // its connections are used again
	fresh *http.Client // each call has a connection of its own
}

// secrets are what the service knows the caller by.
type secrets struct {
	token string
	hmac  []string
}

// askEvery is how often secrets and files are looked at.
const askEvery = time.Second

func newAccess(o Options) (*access, error) {
	a := &access{o: o, certs: certs.Store{Warn: o.Warn}, asked: time.Now(), known: o.secrets()}
	var err error
	if a.config, err = a.certs.Config(o.files()); err != nil {
		return nil, err
	}
	a.clients = newClients(o, a.config)
	return a, nil
}

// now is the clients, and what they say of themselves.
func (a *access) now() (clients, secrets) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.asked) < askEvery {
		return a.clients, a.known
	}
	a.asked, a.known = time.Now(), a.o.secrets()
	config, err := a.certs.Config(a.o.files())
	if err == nil && config != a.config { // it never fails after the first time
		a.clients.kept.CloseIdleConnections()
		a.clients, a.config = newClients(a.o, config), config
	}
	return a.clients, a.known
}

func (o Options) files() certs.TLS { return certs.TLS{CA: o.CAFile, Cert: o.CertFile, Key: o.KeyFile} }

func (o Options) secrets() (s secrets) {
	if o.Token != nil {
		s.token = o.Token()
	}
	if o.Secrets != nil {
		s.hmac = o.Secrets()
	}
	return s
}

func newClients(o Options, config *tls.Config) clients {
	return clients{kept: newClient(o, config, true), fresh: newClient(o, config, false)}
}

// newClient makes a client that follows no redirect: what was signed for one address must not go to another.
func newClient(o Options, config *tls.Config, keep bool) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config.Clone()
	transport.DisableKeepAlives = !keep
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, max(1, o.Concurrency)
	transport.OnProxyConnectResponse = func(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
		if resp.StatusCode == http.StatusProxyAuthRequired || resp.StatusCode == http.StatusForbidden {
			return &proxyError{resp.StatusCode}
		}
		return nil
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// proxyError says that the proxy on the way (HTTPS_PROXY) does not let us through.
type proxyError struct{ status int }

// Error is what it answered.
func (e *proxyError) Error() string { return "the proxy on the way answered " + strconv.Itoa(e.status) }
