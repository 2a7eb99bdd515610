package stack

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	galeraLibrary = "/usr/lib/galera/libgalera_smm.so"
	galeraTimeout = 3 * time.Minute // three nodes, one after the other, on a machine busy with other tests
	galeraPorts   = 4               // of a node: clients, peers, and the two ways in which it gets what it has missed
)

// galera is a cluster in the making.
type galera struct {
	server  program
	spawner *spawner
	dir     string
	ports   []int         // galeraPorts for each node
	root    *mysql.Config // the address is each node's own
	options Options
	nodes   int
}

// galeraNode is what a node needs to be started again.
type galeraNode struct {
	name string
	g    *galera
	dir  string

	founds   bool   // the next start founds the cluster
	position string // what its own files say that it has committed
}

// startGalera starts o.MySQLNodes nodes of MariaDB with Galera, and a HAProxy before them, which it returns. A cluster
// that did not come up is tried again on other ports.
func (s *Stack) startGalera(ctx context.Context, o Options) (*Server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, galeraTimeout, fmt.Errorf("it took over %v to come up", galeraTimeout))
	defer cancel()
	var errs []error
	for try := range 3 {
		way, err := s.tryGalera(ctx, filepath.Join(s.dir, fmt.Sprintf("galera-%d", try)), o)
		if err == nil {
			return way, nil
		}
		errs = append(errs, fmt.Errorf("start a cluster of %s: %w", KindMySQL, err), s.endCluster())
		if errors.Is(err, errNotInstalled) || ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (s *Stack) tryGalera(ctx context.Context, dir string, o Options) (*Server, error) {
	g, err := s.prepareGalera(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	for i := range g.nodes {
		node, err := g.node(i)
		if err != nil {
			return nil, err
		}
		s.Databases = append(s.Databases, node)
		if err := node.start(ctx); err != nil {
			return nil, fmt.Errorf("node %d: %w\nthe first node: %s", i+1, err, s.Databases[0].main.logTail())
		}
		if o.Log != nil {
			fmt.Fprintf(o.Log, "%s node %d listens on %s, process id %d\n", KindMySQL, i+1, node.addr, node.Pid())
		}
	}
	return s.startHAProxy(ctx, dir)
}

// endCluster ends the nodes and what looks after them.
func (s *Stack) endCluster() error {
	var errs []error
	for _, node := range s.Databases {
		errs = append(errs, node.end())
	}
	for _, check := range s.checks {
		errs = append(errs, check.close())
	}
	if s.network != nil {
		errs = append(errs, s.network.end())
	}
	s.Databases, s.checks, s.network = nil, nil, nil
	return errors.Join(errs...)
}

// prepareGalera makes the data of the first node, with its accounts, by running it once by itself. The others get all
// they have from it.
func (s *Stack) prepareGalera(ctx context.Context, dir string, o Options) (*galera, error) {
	server, err := findProgram("mariadbd")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(server.tree, galeraLibrary)); err != nil {
		return nil, fmt.Errorf("find %s: %w", galeraLibrary, errNotInstalled)
	}
	for _, needed := range []string{"haproxy", "rsync"} {
		if _, err := findProgram(needed); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(o.MySQLNodes * galeraPorts)
	if err != nil {
		return nil, err
	}
	g := &galera{server: server, spawner: s.spawner, dir: dir, ports: ports, options: o, nodes: o.MySQLNodes}
	if err := os.MkdirAll(g.folder(0), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the first node: %w", err)
	}
	alone := o
	alone.MySQLArgs = append(slices.Clone(o.MySQLArgs), "--innodb-log-file-size="+galeraLogFile)
	first, err := prepareMySQL(ctx, s.spawner, g.folder(0), alone)
	if err != nil {
		return nil, err
	}
	if err := first.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the first node, by itself: %w", err), first.end())
	}
	if err := first.main.stop(stopTimeout); err != nil {
		return nil, errors.Join(err, first.end())
	}
	if g.root, err = mysql.ParseDSN(first.url); err != nil {
		return nil, fmt.Errorf("parse the DSN of the first node: %w", err)
	}
	return g, nil
}

func (g *galera) folder(node int) string { return filepath.Join(g.dir, nodeName(node)) }

func nodeName(node int) string { return fmt.Sprintf("node%d", node+1) }

// The ports of a node.
const (
	portClients = iota
	portPeers
	portIncremental
	portSnapshot
)

func (g *galera) addr(node, port int) string { return loopback(g.ports[node*galeraPorts+port]) }

// node makes a node that does not run yet.
func (g *galera) node(i int) (*Server, error) {
	dir := g.folder(i)
	n := &galeraNode{name: nodeName(i), g: g, dir: dir, founds: i == 0}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of %s: %w", n.name, err)
	}
	text, err := g.optionFile(i)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(n.optionFile(), []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("write the options of %s: %w", n.name, err)
	}
	if err := n.writeRsync(); err != nil {
		return nil, err
	}
	own := g.root.Clone()
	own.Addr = g.addr(i, portClients)
	return &Server{
		kind: KindMySQL, dir: dir, addr: own.Addr, url: own.FormatDSN(), galera: n, before: n.recover,
		main: &process{
			name: "mysql " + n.name, spawner: g.spawner, logPath: filepath.Join(dir, "mysql.log"),
			command: func() *exec.Cmd { return g.server.server(dir, n.environ(), n.args()...) },
		},
		ask: func(ctx context.Context) error {
			db, err := openMySQL(own.FormatDSN())
			if err != nil {
				return err
			}
			defer db.Close()
			if err := askGalera(ctx, db); err != nil {
				return err
			}
			n.founds = false // from now on it joins the others
			return nil
		},
	}, nil
}

const (
	galeraLogFile = "32M" // of InnoDB's log: a node that joins gets a copy
	galeraCache   = "128M"
)

// optionFile is a file, and no arguments: the scripts by which a node gets its data from another read it too. All
// timeouts between the nodes are Galera's own.
func (g *galera) optionFile(i int) (string, error) {
	account, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("ask who runs the tests: %w", err)
	}
	dir := g.folder(i)
	var peers, donors []string
	for j := range g.nodes {
		peers = append(peers, g.addr(j, portPeers))
	}
	for j := g.nodes - 1; j >= 0; j-- { // the last one first: clients are sent to the first one
		if j != i {
			donors = append(donors, nodeName(j))
		}
	}
	listen := g.addr(i, portPeers)
	lines := []string{
		"[mysqld]", "user=" + account.Username, "datadir=" + filepath.Join(dir, "data"),
		fmt.Sprintf("port=%d", g.ports[i*galeraPorts+portClients]),
		"socket=" + filepath.Join(dir, "s"), "pid-file=" + filepath.Join(dir, "pid"), "tmpdir=" + dir,
		"innodb-log-file-size=" + galeraLogFile, "innodb-autoinc-lock-mode=2", "binlog-format=ROW",
		"wsrep-on=ON", "wsrep-provider=" + galeraLibrary, "wsrep-cluster-name=rollbackd",
		"wsrep-cluster-address=gcomm://" + strings.Join(peers, ","), "wsrep-node-name=" + nodeName(i),
		"wsrep-node-address=127.0.0.1", "wsrep-node-incoming-address=" + g.addr(i, portClients),
		"wsrep-sst-method=rsync", "wsrep-sst-receive-address=" + g.addr(i, portSnapshot),
		"wsrep-sst-donor=" + strings.Join(donors, ",") + ",",
		fmt.Sprintf(`wsrep-provider-options="base_port=%d;gmcast.listen_addr=tcp://%s;ist.recv_addr=%s;gcache.size=%s"`,
			g.ports[i*galeraPorts+portPeers], listen, g.addr(i, portIncremental), galeraCache),
	}
	for _, arg := range slices.Concat(mysqlArgs, g.options.MySQLArgs) {
		lines = append(lines, strings.TrimPrefix(arg, "--"))
	}
	return strings.Join(lines, "\n") + "\n", nil
}

func (n *galeraNode) optionFile() string { return filepath.Join(n.dir, "node.cnf") }

func (n *galeraNode) environ() []string {
	return environment(n.dir, "BASH_ENV="+filepath.Join(n.dir, "bin", "environment"))
}

func (n *galeraNode) args() []string {
	args := []string{"--defaults-file=" + n.optionFile()}
	switch {
	case n.founds:
		args = append(args, "--wsrep-new-cluster")
	case n.position != "":
		args = append(args, "--wsrep-start-position="+n.position)
	}
	return args
}

// writeRsync puts an rsync of the node's own first in the path of MariaDB's scripts, which the server itself sets, but
// for what bash reads before. A daemon of rsync that root starts becomes nobody, unless its configuration says
// otherwise, which one of these scripts writes that does not think of root.
func (n *galeraNode) writeRsync() error {
	rsync, err := findProgram("rsync")
	if err != nil {
		return err
	}
	bin := filepath.Join(n.dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", n.name, err)
	}
	text := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --daemon ]; then\n\tshift\n\texec %[1]s --daemon --dparam=uid=%[2]d "+
		"--dparam=gid=%[3]d \"$@\"\nfi\nexec %[1]s \"$@\"\n", rsync.path, os.Getuid(), os.Getgid())
	path := fmt.Sprintf("PATH=%s:$PATH\n", bin)
	err = errors.Join(os.WriteFile(filepath.Join(bin, "rsync"), []byte(text), 0o700),
		os.WriteFile(filepath.Join(bin, "environment"), []byte(path), 0o600))
	if err != nil {
		return fmt.Errorf("write the rsync of %s: %w", n.name, err)
	}
	return nil
}

var recoveredPosition = regexp.MustCompile(`WSREP: Recovered position: *([0-9a-f-]+:-?\d+)`)

// recover asks the node's own files what it has committed, as galera_recovery does before systemd starts a node: one
// that was killed has not written that down elsewhere, and would take over all data of another node.
func (n *galeraNode) recover(ctx context.Context) error {
	n.position = ""
	if _, err := os.Stat(filepath.Join(n.dir, "data", "grastate.dat")); n.founds || err != nil {
		return nil // it was never in a cluster
	}
	cmd := n.g.server.command(ctx, n.dir, n.environ(), "--defaults-file="+n.optionFile(), "--wsrep-recover")
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := n.g.spawner.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	found := recoveredPosition.FindSubmatch(out.Bytes())
	if err == nil && found == nil {
		err = errors.New("it does not say")
	}
	if err != nil {
		return fmt.Errorf("ask the files of %s what it has committed: %w\n%s", n.name, err, &out)
	}
	n.position = string(found[1])
	return nil
}

// galeraReady is what a node says of itself that may be written to.
var galeraReady = map[string]string{
	"WSREP_READY": "ON", "WSREP_CLUSTER_STATUS": "Primary", "WSREP_LOCAL_STATE": "4", // synced
	"READ_ONLY": "OFF", "WSREP_REJECT_QUERIES": "NONE",
}

// askGalera is nil when the node may be written to. What it reads is answered by a node that answers nothing else.
func askGalera(ctx context.Context, db *sql.DB) error {
	rows, err := db.QueryContext(ctx, "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "+
		"WHERE VARIABLE_NAME IN ('WSREP_READY', 'WSREP_CLUSTER_STATUS', 'WSREP_LOCAL_STATE') UNION ALL "+
		"SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES "+
		"WHERE VARIABLE_NAME IN ('READ_ONLY', 'WSREP_REJECT_QUERIES')")
	if err != nil {
		return fmt.Errorf("ask for the state of the node: %w", err)
	}
	defer rows.Close()
	said := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return fmt.Errorf("ask for the state of the node: %w", err)
		}
		said[strings.ToUpper(name)] = value
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("ask for the state of the node: %w", err)
	}
	for name, want := range galeraReady {
		if said[name] != want {
			return fmt.Errorf("the node cannot be written to: %s is %q, want %q", name, said[name], want)
		}
	}
	return nil
}
