package stack

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	l := require.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c := require.Get(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	require.Get(c.Write([]byte(text)))(t)
}

func hear(t *testing.T, c net.Conn, want string) {
	t.Helper()
	buf := make([]byte, len(want))
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	require.Get(io.ReadFull(c, buf))(t)
	require.Is(t, string(buf), want, "heard")
}

// talks says something, which must come back.
func talks(t *testing.T, c net.Conn, text string) {
	t.Helper()
	say(t, c, text)
	hear(t, c, text)
}

// proxied is a proxy with a connection through it.
func proxied(t *testing.T) (*TCPProxy, net.Conn) {
	t.Helper()
	p := Proxy(t, echo(t))
	c := dial(t, p.Addr)
	talks(t, c, "a")
	return p, c
}

func TestProxyRefuseLeavesOpenConnectionsAloneUntilTheyAreCut(t *testing.T) {
	p, c := proxied(t)

	p.Refuse(true)

	_, err := net.Dial("tcp", p.Addr)
	assert.Error(t, err, syscall.ECONNREFUSED, "dial while refusing")
	talks(t, c, "b")
	if l, err := net.Listen("tcp", p.Addr); err == nil {
		_ = l.Close()
		t.Error("another server took the port meanwhile")
	}

	p.Cut()

	_, err = c.Read(make([]byte, 1))
	assert.Error(t, err, syscall.ECONNRESET, "read after Cut")
	poll.Until(t, "no link being left", func() bool { return p.Links() == 0 })
	p.Refuse(false)
	talks(t, dial(t, p.Addr), "c")
}

func TestProxyHoldKeepsBytesAndLosesNone(t *testing.T) {
	p, c := proxied(t)

	p.Hold(true)
	say(t, c, "held")
	_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	n, err := c.Read(make([]byte, 4))
	require.That(t, n == 0 && errors.Is(err, os.ErrDeadlineExceeded), "read %d bytes, %v while held; want none", n, err)
	p.Hold(false)
	hear(t, c, "held")
}

func TestProxySlowsTheLinkDown(t *testing.T) {
	for name, c := range map[string]struct {
		slow  func(*TCPProxy)
		bytes int64
		least time.Duration // there and back
	}{
		"delayed": {func(p *TCPProxy) { p.Delay(100 * time.Millisecond) }, 1, 200 * time.Millisecond},
		"narrow":  {func(p *TCPProxy) { p.Rate(20_000) }, 10_000, 900 * time.Millisecond}, // half a second each way
	} {
		t.Run(name, func(t *testing.T) {
			p := Proxy(t, echo(t))
			c.slow(p)
			began := time.Now()
			talks(t, dial(t, p.Addr), strings.Repeat("x", int(c.bytes)))
			assert.AtLeast(t, time.Since(began), c.least, "there and back took")
			poll.Until(t, "both directions being counted", func() bool { return p.Carried() == 2*c.bytes })
		})
	}
}

func TestProxyKillsEachConnectionOnWhichTheServerSendsTheBytes(t *testing.T) {
	p := Proxy(t, echo(t))
	p.KillOn([]byte("killer"))
	for range 2 {
		c := dial(t, p.Addr)
		say(t, c, "kill")
		hear(t, c, "kill") // as yet it may be something else
		say(t, c, "er")
		n, err := c.Read(make([]byte, 8))
		assert.That(t, errors.Is(err, syscall.ECONNRESET), "read = %d, %v, want a reset", n, err)
	}
	assert.Is(t, p.Killed(), 2, "connections were killed")
	p.KillOn(nil)
	c := dial(t, p.Addr)
	talks(t, c, "killer")
}
