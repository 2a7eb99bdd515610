package redisdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_REDIS_TLS"

// tlsParameters name the parts of a [certs.TLS] in a URL as Python's client does; the last one is our own.
var tlsParameters = map[string]string{
	"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile", "name": "ssl_server_name",
}

// encrypt makes the client dial by itself, with the certificates of the moment and for each node under its own name.
func encrypt(c *redis.UniversalOptions, u redisURL, o Options) error {
	switch {
	case o.TLS != nil && !u.tls:
		return errors.New("redis URL: a TLS configuration is given, and what begins with redis:// is not encrypted: write " +
			"rediss://")
	case o.TLS != nil && u.certs != (certs.TLS{}):
		return errors.New("redis URL: a TLS configuration is given, and certificates or a server name are named too: " +
			"keep one")
	case !u.tls:
		return nil
	}
	store := o.Certs
	if store == nil {
		store = &certs.Store{Warn: o.Warn}
	}
	if o.TLS == nil {
		if _, err := store.Config(u.certs); err != nil {
			return fmt.Errorf("redis URL: %w", err)
		}
	}
	c.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, redisTimeout, fmt.Errorf("no connection to Redis at %s within %v", addr,
			redisTimeout))
		defer cancel()
		var dialer net.Dialer
		raw, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn, err := shakeHands(ctx, raw, store, certs.Peer{
			TLS: u.certs, Host: hostOf(addr), Base: o.TLS, Server: "Redis at " + addr, Setting: TLSSetting,
		})
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		return wrapped{conn}, nil
	}
	return nil
}

func shakeHands(ctx context.Context, raw net.Conn, store *certs.Store, peer certs.Peer) (net.Conn, error) {
	h, err := store.Begin(peer)
	if err != nil {
		return nil, err
	}
	return h.Client(ctx, raw)
}

// wrapped gives the client an error that it may unwrap: it does so with what comes while it sets a connection up.
type wrapped struct{ net.Conn }

func (w wrapped) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	return n, wrap(err)
}

func (w wrapped) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	return n, wrap(err)
}

func wrap(err error) error {
	if e, ok := errors.AsType[*certs.Error](err); ok {
		return fmt.Errorf("%w", e)
	}
	return err
}

// WithTLS writes certificates into a URL, where everybody who connects finds them. What the URL says already must be
// the same. The error completes a sentence about the settings, and quotes no secret.
func WithTLS(raw string, t certs.TLS) (string, error) {
	u, err := parseURL(raw)
	if err != nil || t == (certs.TLS{}) {
		return raw, err
	}
	if !u.tls {
		return raw, errors.New("has no effect on a URL that begins with redis://, which is not encrypted: write " +
			"rediss:// in ROLLBACKD_REDIS_URL")
	}
	merged, err := t.Merge(u.certs, func(part string) (here, there string) {
		return certs.SettingOf(TLSSetting, part), tlsParameters[part] + " in ROLLBACKD_REDIS_URL"
	})
	if err != nil {
		return raw, err
	}
	if err := merged.Check(); err != nil {
		return raw, err
	}
	return raw + merged.Missing(u.certs, tlsParameters, strings.Contains(raw, "?")), nil
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
