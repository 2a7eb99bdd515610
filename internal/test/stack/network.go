package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// network gives each of some servers a network of its own, as machines have one: one line to this machine, for clients,
// and one to the other servers. A line that is cut lets packets vanish, and no connection ends by that.
type network struct {
	hub    *room   // has what joins the servers
	hosts  []*room // a server's network each
	subnet int     // the lines for clients are 198.19.subnet.x
}

// The addresses are of a range that is for tests of network devices (RFC 2544), so that no machine of a network has
// one.
const (
	clientRange = "198.19."
	peerRange   = "198.18.0."
)

// peer is the address by which the others know a server.
func (n *network) peer(i int) string { return fmt.Sprintf("%s%d", peerRange, 11+i) }

// client is the address by which this machine knows a server.
func (n *network) client(i int) string { return fmt.Sprintf("%s%d.%d", clientRange, n.subnet, 4*i+2) }

// gateway is this machine's address on a server's line for clients.
func (n *network) gateway(i int) string { return fmt.Sprintf("%s%d.%d", clientRange, n.subnet, 4*i+1) }

// line is the name of that line.
func (n *network) line(i int) string { return fmt.Sprintf("rb%dn%d", n.subnet, i) }

// newNetwork makes networks for so many servers.
func (s *Stack) newNetwork(ctx context.Context, dir string, servers int) *network {
	n := &network{hub: s.newRoom(ctx, dir, "hub", "net", "ip link add hub type bridge; ip link set hub up;"),
		subnet: freeSubnet()}
	var machine *room
	for i := range servers {
		here, port := n.line(i), nodeName(i)
		host := s.newRoom(ctx, dir, "network "+port, "net", "ip link set lo up;")
		n.hosts = append(n.hosts, host)
		machine.run(ctx, fmt.Sprintf("ip link add %s type veth peer name clients netns %d", here, host.holder.pid()),
			fmt.Sprintf("ip addr add %s/30 dev %s", n.gateway(i), here), "ip link set "+here+" up")
		n.hub.run(ctx, fmt.Sprintf("ip link add %s type veth peer name peers netns %d", port, host.holder.pid()),
			"ip link set "+port+" master hub up")
		host.run(ctx, fmt.Sprintf("ip addr add %s/30 dev clients", n.client(i)), "ip link set clients up",
			fmt.Sprintf("ip addr add %s/24 dev peers", n.peer(i)), "ip link set peers up")
	}
	return n
}

// freeSubnet finds one that no test beside this one uses.
func freeSubnet() int {
	used := fmt.Sprint(must.Get(net.InterfaceAddrs()))
	for range 1000 {
		if subnet := rand.IntN(256); !strings.Contains(used, fmt.Sprintf("%s%d.", clientRange, subnet)) {
			return subnet
		}
	}
	must.OK(errors.New("find a free subnet: 1000 tries were in vain"))
	return 0
}

// state is what ip calls a line that is cut, or is not.
func state(isCut bool) string {
	if isCut {
		return "down"
	}
	return "up"
}

// CutOff takes a node's line to the other nodes away, for packets in both directions. Clients still reach it.
func (s *Stack) CutOff(ctx context.Context, node *Server) error { return s.cut(ctx, node, true) }

// Mend gives the line back.
func (s *Stack) Mend(ctx context.Context, node *Server) error { return s.cut(ctx, node, false) }

func (s *Stack) cut(ctx context.Context, node *Server, on bool) error {
	n := s.replicated.network
	return must.Catch(func() { n.hub.run(ctx, fmt.Sprintf("ip link set %s %s", nodeName(s.Index(node)), state(on))) })
}

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
	s := newStack()
	stopWith(t, s)
	a := &Apart{t: t}
	if err := must.Catch(func() { a.network = s.newNetwork(t.Context(), s.dir, 1) }); err != nil {
		t.Skipf("a network of its own cannot be made here: %v", err)
	}
	return a
}

// Command is what runs a program in it.
func (a *Apart) Command(path string, args ...string) (string, []string) {
	enter := a.network.hosts[0].enter()
	return enter[0], slices.Concat(enter[1:], []string{path}, args)
}

// Through returns the URL or DSN of a server on this machine, at addr, as it is reached from within.
func (a *Apart) Through(url, addr string) string {
	a.t.Helper()
	l := require.Get(net.Listen("tcp", net.JoinHostPort(a.network.gateway(0), "0")))(a.t)
	p := newProxy(l.(*net.TCPListener), addr, a.t.Errorf)
	a.t.Cleanup(p.Close)
	return p.Through(url)
}

// Cut takes its line away, and gives it back: packets vanish meanwhile, and no connection ends by that.
func (a *Apart) Cut(on bool) {
	a.t.Helper()
	line := fmt.Sprintf("ip link set %s %s", a.network.line(0), state(on))
	require.OK(a.t, must.Catch(func() { (*room)(nil).run(a.t.Context(), line) }))
}
