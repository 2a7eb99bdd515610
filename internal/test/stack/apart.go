package stack

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// Apart is a network for processes of one test, with one line to this machine: what runs in it runs as on a machine of
// its own.
type Apart struct {
	t       testing.TB
	network *network
}

// NewApart makes one. Where that is not allowed the test is skipped, which takes root.
func NewApart(t testing.TB) *Apart {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a network of its own needs root")
	}
	sp := newSpawner()
	t.Cleanup(sp.close)
	n, err := newNetwork(t.Context(), sp, t.TempDir(), 1)
	if err != nil {
		t.Skipf("a network of its own cannot be made here: %v", err)
	}
	t.Cleanup(func() {
		if err := n.end(); err != nil {
			t.Errorf("end the network: %v", err)
		}
	})
	return &Apart{t, n}
}

// Command is what runs a program in it.
func (a *Apart) Command(path string, args ...string) (string, []string) {
	return a.network.nsenter.path, append([]string{"--net=" + namespace(a.network.hosts[0]), path}, args...)
}

// Through returns the URL or DSN of a server on this machine, at addr, as it is reached from within.
func (a *Apart) Through(url, addr string) string {
	a.t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(a.network.gateway(0), "0"))
	if err != nil {
		a.t.Fatalf("listen for who is apart: %v", err)
	}
	p := newProxy(l.(*net.TCPListener), addr, a.t.Errorf)
	a.t.Cleanup(p.Close)
	return p.Through(url)
}

// Cut takes its line away, and gives it back: packets vanish meanwhile, and no connection ends by that.
func (a *Apart) Cut(on bool) {
	a.t.Helper()
	state := "up"
	if on {
		state = "down"
	}
	if err := a.network.in(a.t.Context(), nil, fmt.Sprintf("link set %s %s", a.network.line(0), state)); err != nil {
		a.t.Fatalf("cut the line: %v", err)
	}
}
