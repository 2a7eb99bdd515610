package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// room is a namespace of the kernel that only some programs see. It lives as long as a process in it, and what was made
// in it goes with it: nothing is left of a test that was killed. It takes root.
type room struct {
	of     string // net or mount, as unshare and nsenter call it
	holder *process
}

// newRoom makes one in which a script of the shell has run, until the stack ends.
func (s *Stack) newRoom(ctx context.Context, dir, name, of, script string) *room {
	const ready = "the room is ready"
	holder := newProcess(name, dir, findOnMachine("unshare"), nil, "--"+of, "sh", "-c",
		"set -e; "+script+" echo "+ready+"; exec sleep infinity")
	must.OK(holder.start())
	s.onEnd(holder.kill)
	must.OK(again(ctx, holder.ended(), func(context.Context) error {
		if !strings.Contains(holder.logTail(), ready) {
			return errors.New("it is not ready")
		}
		return nil
	}), "make a namespace for ", name, ", which takes root: ", holder.logTail())
	return &room{of, holder}
}

// enter are the words before a program that runs in the room.
func (r *room) enter() []string {
	return []string{findOnMachine("nsenter").path, "--target", strconv.Itoa(r.holder.pid()), "--" + r.of}
}

// run runs commands of the machine in the room; nil is what is outside of all rooms.
func (r *room) run(ctx context.Context, lines ...string) {
	for _, line := range lines {
		words := append([]string{"/usr/bin/env"}, strings.Fields(line)...) // which looks in the environment's path
		if r != nil {
			words = append(r.enter(), words...)
		}
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Env = environment("/")
		output(cmd, line)
	}
}

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

// ErrNoDisk says that this process may not mount anything, so that there is no disk that could run full.
var ErrNoDisk = errors.New("a disk of its own needs the right to mount (root, or CAP_SYS_ADMIN)")

// disk is a file system in memory in a room of its own.
type disk struct {
	room *room
	path string
	size int64 // bytes
}

// makeDisk mounts a disk on a new folder.
func (s *Stack) makeDisk(ctx context.Context, dir, path string, size int64) *disk {
	d := &disk{path: path, size: size}
	err := must.Catch(func() {
		must.OK(os.Mkdir(path, 0o700))
		d.room = s.newRoom(ctx, dir, "disk", "mount",
			fmt.Sprintf("mount -t tmpfs -o size=%d,mode=0700 tmpfs %s;", size, path))
	})
	if err != nil {
		must.OK(fmt.Errorf("%w: %w", ErrNoDisk, err))
	}
	return d
}

func (d *disk) resize(size int64) error {
	return must.Catch(func() {
		d.room.run(context.Background(), fmt.Sprintf("mount -o remount,size=%d %s", size, d.path))
	})
}

// fill takes away what is free: the disk becomes as small as what is on it.
func (d *disk) fill() (err error) {
	for range 100 { // what is written meanwhile makes the size too small, which is refused
		var now syscall.Statfs_t
		if err := syscall.Statfs(fmt.Sprintf("/proc/%d/root%s", d.room.holder.pid(), d.path), &now); err != nil {
			return err
		}
		if err = d.resize(int64(now.Blocks-now.Bfree) * now.Bsize); err == nil {
			return nil
		}
	}
	return err
}

// FillDisk leaves no byte free on the disk that [Options].MySQLDisk gave the server.
func (s *Server) FillDisk() error { return s.report("fill the disk of", s.disk.fill()) }

// FreeDisk gives the disk its size back. A server that did not survive the full disk is started again.
func (s *Server) FreeDisk() error {
	return s.inTime("free the disk of", func(ctx context.Context) error {
		if err := s.disk.resize(s.disk.size); err != nil {
			return err
		}
		err := s.waitReady(ctx)
		if err != nil && s.Pid() == 0 {
			err = s.start(ctx)
		}
		return err
	})
}
