package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// Peer says with whom a handshake is, and what is known of both.
type Peer struct {
	TLS
	// Host is the server's, as its address says.
	Host string
	// Base, if set, is a configuration that was given instead of files.
	Base *tls.Config
	// Server is the [Error]'s.
	Server string
	// Setting begins the names of the settings that an [Error] points to, for example ROLLBACKD_AMQP_TLS.
	Setting string
}

// Handshake is one connection's, from its configuration to the first byte that the server says above it.
type Handshake struct {
	Config *tls.Config

	peer   Peer
	client *x509.Certificate // ours; nil: none
	asked  atomic.Bool       // the server asked for a client certificate
	done   atomic.Bool       // our side of the handshake came to its end
	failed atomic.Pointer[Error]
}

// Begin makes a handshake with the certificates of the moment.
func (s *Store) Begin(p Peer) (*Handshake, error) {
	h := &Handshake{peer: p, Config: p.Base}
	if p.Base == nil || p.TLS != (TLS{}) {
		files, err := s.Config(p.TLS)
		if err != nil {
			return nil, err
		}
		h.Config = files
		if p.Base != nil { // what a DSN says beside its files
			h.Config = files.Clone()
			h.Config.InsecureSkipVerify = p.Base.InsecureSkipVerify
		}
	}
	h.Config = h.Config.Clone()
	h.Config.ServerName = cmp.Or(h.Config.ServerName, p.Host)
	if len(h.Config.Certificates) > 0 {
		h.client = leafOf(&h.Config.Certificates[0])
	}
	h.watch(s)
	return h, nil
}

// watch notes how far the handshake comes.
func (h *Handshake) watch(s *Store) {
	choose, ours := h.Config.GetClientCertificate, h.Config.Certificates
	if choose == nil {
		// Without this, a certificate whose authority the server does not name is not sent, and the server says that there
		// is none, instead of what it does not like about it.
		choose = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for i := range ours {
				if r.SupportsCertificate(&ours[i]) == nil {
					return &ours[i], nil
				}
			}
			if len(ours) > 0 {
				return &ours[0], nil
			}
			return &tls.Certificate{}, nil
		}
	}
	h.Config.GetClientCertificate = func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		h.asked.Store(true)
		c, err := choose(r)
		if err == nil && c != nil {
			h.client = leafOf(c)
		}
		return c, err
	}
	verify := h.Config.VerifyConnection
	h.Config.VerifyConnection = func(state tls.ConnectionState) error {
		if verify != nil {
			if err := verify(state); err != nil {
				return err
			}
		}
		h.done.Store(true)
		if s != nil && s.Seen != nil {
			s.Seen(state, h.client)
		}
		return nil
	}
}

func leafOf(c *tls.Certificate) *x509.Certificate {
	if c.Leaf != nil || len(c.Certificate) == 0 {
		return c.Leaf
	}
	leaf, _ := x509.ParseCertificate(c.Certificate[0]) // the handshake will say what is wrong with it
	return leaf
}

// Client shakes hands over a connection. On an error the connection is still the caller's to close.
func (h *Handshake) Client(ctx context.Context, raw net.Conn) (*Conn, error) {
	c := tls.Client(raw, h.Config)
	if err := c.HandshakeContext(ctx); err != nil {
		switch cause := context.Cause(ctx); {
		case errors.Is(cause, context.Canceled):
			return nil, cause
		case cause != nil:
			return nil, &Error{Server: h.peer.Server, What: "the handshake did not end in time", Err: cause,
				Do: "does the server speak TLS on this port?"}
		}
		return nil, h.Explain(err)
	}
	return &Conn{Conn: c, h: h}, nil
}

// Conn is a connection above TLS. Under TLS 1.3 a server looks at the client's certificate when the client's side of
// the handshake is over, so what it thinks of it comes with the first read: up to the server's first byte, errors are
// explained as those of the handshake are.
type Conn struct {
	*tls.Conn
	h        *Handshake
	answered atomic.Bool
}

// lastWords is how long the reason for a hang-up is waited for.
const lastWords = time.Second

// Read reads, and explains what comes instead of a first byte.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.answered.Store(true)
	}
	if err != nil && !c.answered.Load() {
		err = c.h.Explain(err)
	}
	return n, err
}

// Write writes. When the server has hung up without a byte, why it did may still wait to be read.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err == nil || c.answered.Load() {
		return n, err
	}
	_ = c.Conn.SetReadDeadline(time.Now().Add(lastWords)) // fails on a closed connection, as the Read does
	if _, said := c.Conn.Read(make([]byte, 1)); said != nil {
		err = c.h.Explain(said, err)
	}
	return n, err
}

// Failed is what [Handshake.Explain] has explained, nil if there was nothing.
func (c *Conn) Failed() error {
	if e := c.h.failed.Load(); e != nil {
		return e
	}
	return nil
}
