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

	mu    sync.Mutex
	login           // guarded by mu
	asked time.Time // guarded by mu
}

// login is the way to call, and what the service knows the caller by.
type login struct {
	kept   *http.Client // its connections are used again
	config *tls.Config  // that it was made of
	token  string
	hmac   []string
}

// askEvery is how often secrets and files are looked at.
const askEvery = time.Second

// now is the login of the moment.
func (a *access) now() login {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.asked) >= askEvery {
		_ = a.ask() // it never fails after the first time
	}
	return a.login
}

func (a *access) ask() error {
	a.asked = time.Now()
	if a.o.Token != nil {
		a.token = a.o.Token()
	}
	if a.o.Secrets != nil {
		a.hmac = a.o.Secrets()
	}
	config, err := a.certs.Config(certs.TLS{CA: a.o.CAFile, Cert: a.o.CertFile, Key: a.o.KeyFile})
	if err != nil || a.kept != nil && config == a.config {
		return err
	}
	if a.kept != nil {
		a.kept.CloseIdleConnections()
	}
	a.kept, a.config = newClient(a.o, config, true), config
	return nil
}

// newClient makes a client that follows no redirect: what was signed for one address must not go to another. Unless it
// keeps them, each call has a connection of its own.
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
