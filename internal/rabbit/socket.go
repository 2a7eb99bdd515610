package rabbit

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/certs"
)

// socket is the client's way to the broker. What comes goes through the walker, above TLS.
//
// It closes itself as soon as reading fails. The client notices a dead peer by its read deadline, but then waits for a
// lock that a goroutine holds which is stuck in Write; on a frozen broker that would be for ever.
//
// The client moves that deadline with each frame that it gets, and gets none while the walker drops a large body or
// reads headers as large. So the deadline moves with the bytes that come.
type socket struct {
	net.Conn             // tcp, or TLS over it
	tcp      net.Conn    // closing it waits for nobody; TLS would say goodbye first
	tls      *certs.Conn // nil without
	frames   *walker
	patience atomic.Int64 // nanoseconds from one frame to the next, as the client asks for; 0: without end
}

// connect opens the way to one broker. It does what the client does for an amqps URL, and says more when that fails.
func connect(ctx context.Context, network string, e endpoint, cfg Config) (*socket, error) {
	var dialer net.Dialer
	tcp, err := dialer.DialContext(ctx, network, net.JoinHostPort(e.uri.Host, strconv.Itoa(e.uri.Port)))
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: tcp, tcp: tcp}
	if e.encrypted() {
		h, err := cfg.Certs.Begin(e.peer(cfg))
		if err == nil {
			s.tls, err = h.Client(ctx, tcp)
		}
		if err != nil {
			s.abort()
			return nil, err
		}
		s.Conn = s.tls
	}
	s.frames = newWalker(arriving{s})
	return s, nil
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.frames.Read(p)
	if err != nil {
		s.abort()
	}
	return n, err
}

// SetReadDeadline is for the client, which asks for the same time each time.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.patience.Store(int64(max(0, time.Until(t))))
	return s.Conn.SetReadDeadline(t)
}

// SetDeadline is for the end, which no bytes put off.
func (s *socket) SetDeadline(t time.Time) error {
	s.patience.Store(0)
	return s.Conn.SetDeadline(t)
}

// arriving is the bytes of the broker. Whoever reads them shows that they come.
type arriving struct{ s *socket }

func (a arriving) Read(p []byte) (int, error) {
	n, err := a.s.Conn.Read(p)
	if d := a.s.patience.Load(); d > 0 && n > 0 {
		_ = a.s.Conn.SetReadDeadline(time.Now().Add(time.Duration(d))) // fails on a closed connection, as the next Read
	}
	return n, err
}

func (s *socket) abort() { _ = s.tcp.Close() }

// withoutTLS is the URL for the client, which would wrap its TLS around our socket: the walker would see ciphertext.
func (e endpoint) withoutTLS() string { return "amqp" + strings.TrimPrefix(e.raw, e.uri.Scheme) }

func (e endpoint) peer(cfg Config) certs.Peer {
	return certs.Peer{TLS: e.tls, Host: e.uri.Host, Base: cfg.TLS, Setting: TLSSetting}
}
