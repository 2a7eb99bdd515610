package redisdb

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// TLSSetting begins the names of the settings for certificates.
const TLSSetting = "ROLLBACKD_REDIS_TLS"

// tlsParameters name the parts of a [certs.TLS] in a URL as Python's client does; the last one is our own.
var tlsParameters = certs.Names{"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_server_name"}

// encrypt makes the client dial by itself, with the certificates of the moment and for each node under its own name.
func encrypt(c *redis.UniversalOptions, u place, o Options) error {
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
		h, err := store.Begin(certs.Peer{
			TLS: u.certs, Host: hostOf(addr), Base: o.TLS, Server: "Redis at " + addr, Setting: TLSSetting,
		})
		if err != nil {
			return nil, err
		}
		raw, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		conn, err := h.Client(ctx, raw)
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
	return nil
}

// TLSOf is what the URL says of certificates; nothing if it is malformed.
func TLSOf(raw string) certs.TLS {
	u, _ := parseURL(raw)
	return u.certs
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
	return tlsParameters.Join(raw, certs.Query(raw), u.certs, t, TLSSetting, "ROLLBACKD_REDIS_URL")
}
