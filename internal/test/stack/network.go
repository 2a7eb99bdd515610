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
	"strconv"
	"strings"
	"time"
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
func (n *network) peer(i int) string { return peerRange + strconv.Itoa(11+i) }

// client is the address by which this machine knows a server.
func (n *network) client(i int) string { return fmt.Sprintf("%s%d.%d", clientRange, n.subnet, 4*i+2) }

// gateway is this machine's address on a server's line for clients.
func (n *network) gateway(i int) string { return fmt.Sprintf("%s%d.%d", clientRange, n.subnet, 4*i+1) }

// line is the name of that line.
func (n *network) line(i int) string { return fmt.Sprintf("rb%dn%d", n.subnet, i) }

// newNetwork makes networks for so many servers.
func newNetwork(ctx context.Context, sp *spawner, dir string, servers int) (n *network, err error) {
	ip, errIP := findOnMachine("ip")
	nsenter, errEnter := findOnMachine("nsenter")
	if err := errors.Join(errIP, errEnter); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the networks: %w", err)
	}
	n = &network{ip: ip, nsenter: nsenter, spawner: sp, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.end())
		}
	}()
	if n.subnet, err = freeSubnet(); err != nil {
		return n, err
	}
	if n.hub, err = n.hold(ctx, "hub"); err != nil {
		return n, err
	}
	if err := n.in(ctx, n.hub, "link add hub type bridge", "link set hub up"); err != nil {
		return n, err
	}
	for i := range servers {
		host, err := n.hold(ctx, nodeName(i))
		if err != nil {
			return n, err
		}
		n.hosts = append(n.hosts, host)
		if err := n.join(ctx, i); err != nil {
			return n, err
		}
	}
	return n, nil
}

// freeSubnet finds one that no test beside this one uses.
func freeSubnet() (int, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return 0, fmt.Errorf("ask for the addresses of this machine: %w", err)
	}
	for range 1000 {
		subnet := rand.IntN(256)
		used := false
		for _, a := range addrs {
			used = used || strings.HasPrefix(a.String(), fmt.Sprintf("%s%d.", clientRange, subnet))
		}
		if !used {
			return subnet, nil
		}
	}
	return 0, fmt.Errorf("find a subnet of %s0.0 that is free: 1000 tries were in vain", clientRange)
}

// hold starts a process with a network that is empty.
func (n *network) hold(ctx context.Context, name string) (*process, error) {
	p := &process{
		name: "network " + name, spawner: n.spawner, logPath: filepath.Join(n.dir, name+".log"),
		command: func() *exec.Cmd {
			holder := program{path: "/usr/bin/unshare"}
			return holder.server(n.dir, environment(n.dir), "--net", "sleep", "infinity")
		},
	}
	if err := p.start(); err != nil {
		return nil, err
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask for this machine's network: %w", err), p.kill())
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if its, err := os.Readlink(namespace(p)); err == nil && its != ours {
			return p, nil
		}
		select {
		case <-tick.C:
		case <-p.ended():
			return nil, fmt.Errorf("make a network for %s, which needs root: %s", name, p.logTail())
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), p.kill())
		}
	}
}

// namespace is the file that stands for the network of a process.
func namespace(p *process) string { return fmt.Sprintf("/proc/%d/ns/net", p.pid()) }

// join lays the two lines of a server.
func (n *network) join(ctx context.Context, i int) error {
	host := n.hosts[i]
	ours := n.line(i)
	here := []string{
		fmt.Sprintf("link add %s type veth peer name clients netns %d", ours, host.pid()),
		fmt.Sprintf("addr add %s/30 dev %s", n.gateway(i), ours),
		fmt.Sprintf("link set %s up", ours),
	}
	if err := n.in(ctx, nil, here...); err != nil {
		return err
	}
	port := nodeName(i)
	if err := n.in(ctx, n.hub, fmt.Sprintf("link add %s type veth peer name peers netns %d", port, host.pid()),
		fmt.Sprintf("link set %s master hub up", port)); err != nil {
		return err
	}
	return n.in(ctx, host, "link set lo up", fmt.Sprintf("addr add %s/30 dev clients", n.client(i)),
		"link set clients up", fmt.Sprintf("addr add %s/24 dev peers", n.peer(i)), "link set peers up")
}

// in runs ip in the network of a process, nil: in this machine's.
func (n *network) in(ctx context.Context, p *process, lines ...string) error {
	for _, line := range lines {
		args := append([]string{n.ip.path}, strings.Fields(line)...)
		if p != nil {
			args = append([]string{n.nsenter.path, "--net=" + namespace(p)}, args...)
		}
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env = environment(n.dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// cut takes a server's line to the others away. Its clients still reach it.
func (n *network) cut(ctx context.Context, i int) error {
	return n.in(ctx, n.hub, fmt.Sprintf("link set %s down", nodeName(i)))
}

// mend gives it back.
func (n *network) mend(ctx context.Context, i int) error {
	return n.in(ctx, n.hub, fmt.Sprintf("link set %s up", nodeName(i)))
}

// enter is the command that runs a program in a server's network, with the program's own root.
func (n *network) enter(i int, p program, dir string, environ []string, args ...string) *exec.Cmd {
	enter := program{path: "/usr/bin/nsenter", tree: p.tree}
	return enter.server(dir, environ, append([]string{"--net=" + namespace(n.hosts[i]), p.path}, args...)...)
}

func (n *network) end() error {
	var errs []error
	for _, p := range append(n.hosts, n.hub) {
		if p != nil {
			errs = append(errs, p.kill())
		}
	}
	return errors.Join(errs...)
}
