package stack

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

const (
	galeraLibrary = "/usr/lib/galera/libgalera_smm.so"
	galeraLogFile = "32M" // of InnoDB's log: a node that joins gets a copy
)

// The ports of a node of Galera.
const (
	portClients = iota
	portPeers
	portIncremental // two ways in which it gets what it has missed
	portSnapshot
	galeraPorts // how many
)

// galera is a cluster in the making.
type galera struct {
	*Stack
	server  executable
	dir     string
	ports   []int  // galeraPorts for each node
	root    string // its password
	options Options
}

// galeraNode is what a node needs to be started again.
type galeraNode struct {
	*galera
	dir, options string // the options are a file, which the scripts read too by which a node gets its data from another

	founds   bool   // the next start founds the cluster
	position string // what its own files say that it has committed
}

// startGalera starts o.MySQLNodes nodes of MariaDB with Galera, and a HAProxy before them, which it returns. A cluster
// that did not come up is tried again on other ports.
func (s *Stack) startGalera(ctx context.Context, o Options) (way *Server) {
	s.thrice(ctx, "start a cluster of MariaDB", func() {
		for _, node := range s.Databases { // of the try before
			must.OK(node.end())
		}
		s.Databases = nil
		g := s.prepareGalera(ctx, must.Get(os.MkdirTemp(s.dir, "galera-")), o)
		for i := range o.MySQLNodes {
			s.startNode(ctx, g.node(i), o)
		}
		way = s.startHAProxy(ctx, askGalera)
	})
	return way
}

// startNode starts the next node of a database cluster.
func (s *Stack) startNode(ctx context.Context, node *Server, o Options) {
	s.Databases = append(s.Databases, node)
	s.onEnd(node.end)
	must.OK(node.start(ctx), node.main.name, "\nthe first node: ", s.Databases[0].main.logTail())
	fmt.Fprintf(o.Log, "%s listens on %s, process id %d\n", node.main.name, node.addr, node.Pid())
}

// prepareGalera makes the data of the first node, with its accounts, by running it once by itself. The others get all
// they have from it.
func (s *Stack) prepareGalera(ctx context.Context, dir string, o Options) *galera {
	g := &galera{Stack: s, server: findProgram("mariadbd"), dir: dir, options: o,
		ports: must.Get(freePorts(o.MySQLNodes * galeraPorts))}
	g.server.needs(galeraLibrary)
	findOnMachine("haproxy")
	must.OK(os.Mkdir(g.folder(0), 0o700))
	alone := o
	alone.MySQLArgs = append(slices.Clone(o.MySQLArgs), "--innodb-log-file-size="+galeraLogFile)
	first := s.prepareMySQL(ctx, g.folder(0), alone)
	s.onEnd(first.main.kill)
	must.OK(first.start(ctx), "the first node, by itself")
	must.OK(first.main.stop(stopTimeout))
	g.root = must.Get(mysql.ParseDSN(first.url)).Passwd
	return g
}

func (g *galera) folder(node int) string { return filepath.Join(g.dir, nodeName(node)) }

func nodeName(node int) string { return fmt.Sprintf("node%d", node+1) }

func (g *galera) addr(node, port int) string { return loopback(g.ports[node*galeraPorts+port]) }

// node makes a node that does not run yet.
func (g *galera) node(i int) *Server {
	dir := g.folder(i)
	must.OK(os.MkdirAll(filepath.Join(dir, "data"), 0o700))
	n := &galeraNode{galera: g, dir: dir, founds: i == 0, options: g.optionFile(i)}
	n.writeRsync()
	s := newServer(KindMySQL, dir, g.addr(i, portClients), g.server, nil)
	s.name, s.main.name, s.main.command = nodeName(i), "mysql "+nodeName(i), n.command
	s.url, s.before = rootOf(s.addr, g.root).FormatDSN(), n.recover
	s.ask = func(ctx context.Context) error {
		err := onMySQL(ctx, s.url, askGalera)
		n.founds = n.founds && err != nil // from now on it joins the others
		return err
	}
	return s
}

func (g *galera) optionFile(i int) string {
	var peers, donors []string
	for j := range g.options.MySQLNodes {
		peers = append(peers, g.addr(j, portPeers))
		if j != i {
			donors = append([]string{nodeName(j)}, donors...) // the last one first: clients are sent to the first one
		}
	}
	return mysqlOptions(g.folder(i), g.ports[i*galeraPorts+portClients], map[string]any{"Galera": map[string]any{
		"LogFile": galeraLogFile, "Library": galeraLibrary, "Name": nodeName(i),
		"Peers": strings.Join(peers, ","), "Donors": strings.Join(donors, ","),
		"Clients": g.addr(i, portClients), "Snapshot": g.addr(i, portSnapshot), "Peer": g.addr(i, portPeers),
		"PeerPort": g.ports[i*galeraPorts+portPeers], "Incremental": g.addr(i, portIncremental),
	}})
}

// environ lets MariaDB's scripts read a file before they set their path.
func (n *galeraNode) environ() []string {
	return []string{"BASH_ENV=" + filepath.Join(n.dir, "environment")}
}

func (n *galeraNode) command() *exec.Cmd {
	args := append([]string{n.options}, n.galera.options.MySQLArgs...)
	switch {
	case n.founds:
		args = append(args, "--wsrep-new-cluster")
	case n.position != "":
		args = append(args, "--wsrep-start-position="+n.position)
	}
	return n.server.command(context.Background(), n.dir, n.environ(), args...)
}

// writeRsync puts an rsync of the node's own first in the path of MariaDB's scripts, which the server itself sets, but
// for what bash reads before. A daemon of rsync that root starts becomes nobody, unless its configuration says
// otherwise, which one of these scripts writes that does not think of root.
func (n *galeraNode) writeRsync() {
	path := writeFile(n.dir, "rsync", fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = --daemon ]; then\n\tshift\n\texec %[1]s "+
		"--daemon --dparam=uid=%[2]d --dparam=gid=%[3]d \"$@\"\nfi\nexec %[1]s \"$@\"\n", findProgram("rsync").path,
		os.Getuid(), os.Getgid()))
	must.OK(os.Chmod(path, 0o700))
	writeFile(n.dir, "environment", fmt.Sprintf("PATH=%s:$PATH\n", n.dir))
}

var recoveredPosition = regexp.MustCompile(`WSREP: Recovered position: *([0-9a-f-]+:-?\d+)`)

// recover asks the node's own files what it has committed, as galera_recovery does before systemd starts a node: one
// that was killed has not written that down elsewhere, and would take over all data of another node.
func (n *galeraNode) recover(ctx context.Context) error {
	n.position = ""
	if _, err := os.Stat(filepath.Join(n.dir, "data", "grastate.dat")); n.founds || err != nil {
		return nil // it was never in a cluster
	}
	cmd := n.server.command(ctx, n.dir, n.environ(), n.options, "--wsrep-recover")
	return must.Catch(func() {
		out := output(cmd, "ask the files of a node what it has committed")
		found := recoveredPosition.FindSubmatch(out)
		if found == nil {
			must.OK(fmt.Errorf("a node's files do not say what it has committed:\n%s", out))
		}
		n.position = string(found[1])
	})
}

// askGalera is not stopped when the node may be written to. What it reads is answered by a node that answers nothing
// else.
func askGalera(ctx context.Context, db *sql.DB) {
	ready := map[string]string{
		"WSREP_READY": "ON", "WSREP_CLUSTER_STATUS": "Primary", "WSREP_LOCAL_STATE": "4", // synced
		"READ_ONLY": "OFF", "WSREP_REJECT_QUERIES": "NONE",
	}
	must.Rows(ctx, db, "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "+
		"WHERE VARIABLE_NAME IN ('WSREP_READY', 'WSREP_CLUSTER_STATUS', 'WSREP_LOCAL_STATE') UNION ALL "+
		"SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.GLOBAL_VARIABLES "+
		"WHERE VARIABLE_NAME IN ('READ_ONLY', 'WSREP_REJECT_QUERIES')", func(scan func(...any)) {
		var name, value string
		scan(&name, &value)
		if ready[strings.ToUpper(name)] == value {
			delete(ready, strings.ToUpper(name))
		}
	})
	if len(ready) > 0 {
		must.OK(fmt.Errorf("the node cannot be written to: it does not say %v", ready))
	}
}
