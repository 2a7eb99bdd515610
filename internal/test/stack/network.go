package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// network gives each of some servers a network of its own, as machines have one: one line to this machine, for clients,
// and one to the other servers. A line that is cut lets packets vanish, and no connection ends by that.
//
// A network lives as long as a process in it, and what leads there goes with it: nothing is left of a test that was
// killed. It needs root.
type network struct {
	ip, nsenter program
	spawner     *spawner
	dir         string
	hub         *process   // holds what joins the servers
	hosts       []*process // hold a server's network each
	subnet      int        // the lines for clients are 198.19.subnet.x
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

// newNetwork makes networks for so many servers, which end is told how to end.
func newNetwork(ctx context.Context, sp *spawner, dir string, servers int, onEnd func(func() error)) *network {
	n := &network{ip: must.Get(findOnMachine("ip")), nsenter: must.Get(findOnMachine("nsenter")), spawner: sp, dir: dir,
		subnet: freeSubnet()}
	n.hub = n.hold(ctx, "hub", onEnd)
	n.in(ctx, n.hub, "link add hub type bridge", "link set hub up")
	for i := range servers {
		host, here, port := n.hold(ctx, nodeName(i), onEnd), n.line(i), nodeName(i)
		n.hosts = append(n.hosts, host)
		n.in(ctx, nil, fmt.Sprintf("link add %s type veth peer name clients netns %d", here, host.pid()),
			fmt.Sprintf("addr add %s/30 dev %s", n.gateway(i), here), "link set "+here+" up")
		n.in(ctx, n.hub, fmt.Sprintf("link add %s type veth peer name peers netns %d", port, host.pid()),
			"link set "+port+" master hub up")
		n.in(ctx, host, "link set lo up", fmt.Sprintf("addr add %s/30 dev clients", n.client(i)), "link set clients up",
			fmt.Sprintf("addr add %s/24 dev peers", n.peer(i)), "link set peers up")
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

// hold starts a process with a network that is empty.
func (n *network) hold(ctx context.Context, name string, onEnd func(func() error)) *process {
	p := &process{
		name: "network " + name, spawner: n.spawner, logPath: filepath.Join(n.dir, name+".log"),
		command: func() *exec.Cmd {
			holder := program{path: "/usr/bin/unshare"}
			return holder.server(n.dir, environment(n.dir), "--net", "sleep", "infinity")
		},
	}
	must.OK(p.start())
	onEnd(p.kill)
	ours := must.Get(os.Readlink("/proc/self/ns/net"))
	err := again(ctx, p.ended(), func(context.Context) error {
		its, err := os.Readlink(namespace(p))
		if err == nil && its == ours {
			err = errors.New("it is in this machine's network")
		}
		return err
	})
	must.OK(err, "make a network for "+name+", which needs root: "+p.logTail())
	return p
}

// namespace is the file that stands for the network of a process.
func namespace(p *process) string { return fmt.Sprintf("/proc/%d/ns/net", p.pid()) }

// in runs ip in the network of a process, nil: in this machine's.
func (n *network) in(ctx context.Context, p *process, lines ...string) {
	for _, line := range lines {
		args := append([]string{n.ip.path}, strings.Fields(line)...)
		if p != nil {
			args = append([]string{n.nsenter.path, "--net=" + namespace(p)}, args...)
		}
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = environment(n.dir)
		out, err := cmd.CombinedOutput()
		must.OK(err, strings.Join(args, " "), ": ", string(out))
	}
}

// enter is the command that runs a program in a server's network, with the program's own root.
func (n *network) enter(i int, p program, dir string, args ...string) *exec.Cmd {
	enter := program{path: "/usr/bin/nsenter", tree: p.tree}
	return enter.server(dir, environment(dir), append([]string{"--net=" + namespace(n.hosts[i]), p.path}, args...)...)
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
	return must.Catch(func() { n.in(ctx, n.hub, fmt.Sprintf("link set %s %s", nodeName(s.Index(node)), state(on))) })
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
	sp := newSpawner()
	t.Cleanup(sp.close)
	a := &Apart{t: t}
	err := must.Catch(func() {
		a.network = newNetwork(t.Context(), sp, t.TempDir(), 1, func(end func() error) {
			t.Cleanup(func() { assert.OK(t, end(), "end the network:") })
		})
	})
	if err != nil {
		t.Skipf("a network of its own cannot be made here: %v", err)
	}
	return a
}

// Command is what runs a program in it.
func (a *Apart) Command(path string, args ...string) (string, []string) {
	return a.network.nsenter.path, append([]string{"--net=" + namespace(a.network.hosts[0]), path}, args...)
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
	line := fmt.Sprintf("link set %s %s", a.network.line(0), state(on))
	require.OK(a.t, must.Catch(func() { a.network.in(a.t.Context(), nil, line) }))
}
