package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// startHAProxy starts one before the nodes, and what tells it which of them may be written to. Its URL is the way to
// whichever node that is.
func (s *Stack) startHAProxy(ctx context.Context, writable func(context.Context, *sql.DB)) *Server {
	config := must.Get(mysql.ParseDSN(s.Databases[0].url))
	config.Addr = loopback(must.Get(freePorts(1))[0])
	var checks []int
	for _, node := range s.Databases {
		checks = append(checks, s.startNodeCheck(node.url, writable))
	}
	dir := must.Get(os.MkdirTemp(s.dir, "haproxy-"))
	way := newServer(KindHAProxy, dir, config.Addr, findOnMachine("haproxy"), nil, "-db", "-f", writeConfig(dir,
		"haproxy.cfg", map[string]any{"Addr": config.Addr, "Nodes": s.Databases, "Checks": checks}))
	way.url = config.FormatDSN()
	way.ask = pings(way.url)
	s.onEnd(way.end)
	must.OK(way.start(ctx))
	return way
}

// startNodeCheck serves a page that is there while a node may be written to, until the stack ends.
func (s *Stack) startNodeCheck(dsn string, writable func(context.Context, *sql.DB)) (port int) {
	const patience = 1800 * time.Millisecond // less than HAProxy waits for an answer
	config := must.Get(mysql.ParseDSN(dsn))
	config.Timeout, config.ReadTimeout, config.WriteTimeout = patience, patience, patience
	db := OpenMySQL(config)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		if err := must.Catch(func() { writable(ctx, db) }); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
	server.Config.SetKeepAlivesEnabled(false)
	server.Start()
	s.onEnd(func() error {
		server.Close() // which waits for answers that are on their way
		return db.Close()
	})
	return server.Listener.Addr().(*net.TCPAddr).Port
}

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

// Replication is how the nodes of a database cluster come to hold the same.
type Replication string

// The kinds of replication. All but the first are MySQL's and need its version 8.4 or newer, and root.
const (
	// Galera is MariaDB's.
	Galera Replication = ""
	// Group is group replication in single-primary mode: the nodes elect who is written to.
	Group Replication = "group"
	// SemiSync is one source and its replicas. The source commits nothing that no replica has received (AFTER_SYNC),
	// and waits for that without end. Somebody has to promote a replica: [Stack.Promote].
	SemiSync Replication = "semisync"
	// Async is one source and its replicas, which may lag.
	Async Replication = "async"
)

const (
	replicatedPort  = "3306" // each node has a network of its own
	groupPort       = "33061"
	replicationUser = "replication"
)

// replicated is a cluster of MySQL's own replication.
type replicated struct {
	server  executable
	network *network
	dir     string
	options Options
	root    string // the password of root
	peers   string // that of the account by which a node gets what another has
}

// startReplicated starts o.MySQLNodes nodes of MySQL and a HAProxy before them, which it returns.
func (s *Stack) startReplicated(ctx context.Context, o Options) *Server {
	s.prepareReplicated(ctx, o)
	for i := range o.MySQLNodes {
		s.startNode(ctx, s.node(i), o)
	}
	if o.Replication == Group {
		s.Found(ctx, 0)
		return s.startHAProxy(ctx, askGroup)
	}
	for i := 1; i < o.MySQLNodes; i++ {
		s.Follow(ctx, i, 0)
	}
	s.open(ctx, 0)
	return s.startHAProxy(ctx, askWritable)
}

// prepareReplicated makes the data of all nodes: that of the first one, with its accounts, and copies of it.
func (s *Stack) prepareReplicated(ctx context.Context, o Options) {
	dir := must.Get(os.MkdirTemp(s.dir, "replicated-"))
	r := &replicated{server: findProgram("mysqld"), dir: dir, options: o, root: rand.Text(), peers: rand.Text()}
	s.replicated = r
	r.server.needs("/usr/lib/mysql/plugin/mysql_clone.so") // of MySQL 8.4 or newer
	r.network = s.newNetwork(ctx, dir, o.MySQLNodes)
	must.OK(os.Mkdir(r.folder(0), 0o700))
	installMySQL(ctx, r.server, r.folder(0))
	// The accounts are made once, without a trace in the binary log: they are in each node's data from the beginning.
	// They are of those who come from this machine or from another node.
	first := s.node(0, "--init-file="+writeFile(r.folder(0), "accounts.sql", "SET sql_log_bin = 0;\n"+
		"CREATE USER 'root'@'%' IDENTIFIED BY '"+r.root+"';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;\n"+
		"CREATE USER '"+replicationUser+"'@'%' IDENTIFIED BY '"+r.peers+"';\n"+
		"GRANT REPLICATION SLAVE, BACKUP_ADMIN, CONNECTION_ADMIN, GROUP_REPLICATION_STREAM ON *.* TO '"+replicationUser+
		"'@'%';\n"))
	s.onEnd(first.main.kill)
	must.OK(first.start(ctx), "the first node, by itself")
	s.on(ctx, 0, "RESET BINARY LOGS AND GTIDS")
	must.OK(first.main.stop(stopTimeout))
	must.OK(os.Remove(filepath.Join(r.folder(0), "data", "auto.cnf"))) // each has a name of its own
	for i := 1; i < o.MySQLNodes; i++ {
		must.OK(os.CopyFS(filepath.Join(r.folder(i), "data"), os.DirFS(filepath.Join(r.folder(0), "data"))))
	}
}

func (r *replicated) folder(node int) string { return filepath.Join(r.dir, nodeName(node)) }

func (r *replicated) addr(node int) string { return r.network.client(node) + ":" + replicatedPort }

func (r *replicated) dsn(node int) string { return rootOf(r.addr(node), r.root).FormatDSN() }

// node makes a node that does not run yet.
func (s *Stack) node(i int, more ...string) *Server {
	r := s.replicated
	dir := r.folder(i)
	inside := r.server
	inside.room = r.network.hosts[i]
	args := slices.Concat([]string{r.optionFile(i)}, r.options.MySQLArgs, more)
	node := newServer(KindMySQL, dir, r.addr(i), inside, nil, args...)
	node.name, node.main.name, node.url, node.ask = nodeName(i), "mysql "+nodeName(i), r.dsn(i), pings(r.dsn(i))
	return node
}

func (r *replicated) optionFile(i int) string {
	node := map[string]any{"ID": i + 1, "Peer": r.network.peer(i), "SemiSync": r.options.Replication == SemiSync}
	if r.options.Replication == Group {
		var seeds []string
		for j := range r.options.MySQLNodes {
			seeds = append(seeds, r.network.peer(j)+":"+groupPort)
		}
		node["Group"], node["Local"], node["Range"] = strings.Join(seeds, ","), seeds[i], peerRange
	}
	return mysqlOptions(r.folder(i), replicatedPort, map[string]any{"Replica": node})
}

// What is below is what a person does with a cluster, or a program in place of one. Who asks for it is stopped, as
// package must says, when it cannot be done.

// on runs statements on a node, over one connection.
func (s *Stack) on(ctx context.Context, i int, statements ...string) {
	err := onMySQL(ctx, s.replicated.dsn(i), func(ctx context.Context, db *sql.DB) {
		db.SetMaxOpenConns(1)
		must.Exec(ctx, db, statements...)
	})
	must.OK(err, nodeName(i))
}

// value asks a node for one value.
func value[T any](ctx context.Context, s *Stack, i int, query string, args ...any) (v T) {
	err := onMySQL(ctx, s.replicated.dsn(i), func(ctx context.Context, db *sql.DB) {
		v = must.Value[T](ctx, db, query, args...)
	})
	must.OK(err, nodeName(i))
	return v
}

// others calls do for each node but those.
func (s *Stack) others(do func(i int), but ...int) {
	for i := range s.Databases {
		if !slices.Contains(but, i) {
			do(i)
		}
	}
}

// Index says which node of [Stack.Databases] that is, -1 for none.
func (s *Stack) Index(node *Server) int { return slices.Index(s.Databases, node) }

// Found makes one node found the group of [Group], and the others join it, as a person does after all were away. It
// returns when all are in it.
func (s *Stack) Found(ctx context.Context, founder int) {
	s.on(ctx, founder, "SET GLOBAL group_replication_bootstrap_group = ON")
	s.join(ctx, founder)
	s.on(ctx, founder, "SET GLOBAL group_replication_bootstrap_group = OFF")
	s.others(func(i int) { s.join(ctx, i) }, founder)
}

// Join lets a node join the group that the others form, and returns when it has what it missed.
func (s *Stack) Join(ctx context.Context, i int) error { return must.Catch(func() { s.join(ctx, i) }) }

func (s *Stack) join(ctx context.Context, i int) {
	s.on(ctx, i, fmt.Sprintf("START GROUP_REPLICATION USER = '%s', PASSWORD = '%s'", replicationUser, s.replicated.peers))
	must.OK(again(ctx, nil, func(ctx context.Context) error {
		return must.Catch(func() {
			state := value[string](ctx, s, i, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members "+
				"WHERE MEMBER_ID = @@server_uuid")
			if state != "ONLINE" {
				must.OK(fmt.Errorf("%s is not in the group, but %q", nodeName(i), state))
			}
		})
	}))
}

// semiSync is what a semi-synchronous source is told, and nobody else: one that applies what its source has committed
// would wait for replicas of its own.
func (s *Stack) semiSync(isSource string) []string {
	if s.replicated.options.Replication != SemiSync {
		return nil
	}
	return []string{"SET GLOBAL rpl_semi_sync_source_enabled = " + isSource}
}

// open makes a node the one that is written to.
func (s *Stack) open(ctx context.Context, i int) {
	s.on(ctx, i, append(s.semiSync("ON"), "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")...)
}

// Follow makes a node the replica of another one.
func (s *Stack) Follow(ctx context.Context, replica, source int) {
	s.on(ctx, replica, append(s.semiSync("OFF"), "SET GLOBAL super_read_only = ON", "STOP REPLICA",
		fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', SOURCE_PORT = %s, SOURCE_USER = '%s', "+
			"SOURCE_PASSWORD = '%s', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1, "+
			"SOURCE_RETRY_COUNT = 86400, SOURCE_HEARTBEAT_PERIOD = 1", s.replicated.network.peer(source), replicatedPort,
			replicationUser, s.replicated.peers), "START REPLICA")...)
}

// Follows says whether a node is a replica of another one.
func (s *Stack) Follows(ctx context.Context, i int) bool {
	return value[bool](ctx, s, i, "SELECT EXISTS (SELECT * FROM performance_schema."+
		"replication_connection_configuration WHERE CHANNEL_NAME = '')")
}

// LeaveOut tells a replica which tables to leave out from now on; none: it applies all.
func (s *Stack) LeaveOut(ctx context.Context, replica int, tables ...string) {
	s.on(ctx, replica, "STOP REPLICA SQL_THREAD", fmt.Sprintf("CHANGE REPLICATION FILTER "+
		"REPLICATE_IGNORE_TABLE = (%s)", strings.Join(tables, ", ")), "START REPLICA SQL_THREAD")
}

// Promote fences nobody: it makes the replica that has received most the source. The old source does not run, or is
// read-only for good. The others follow the new one, and the old one gets no client before it holds what the new one
// does.
//
// All other nodes must answer: what was acknowledged may have been received by one semi-synchronous replica alone.
func (s *Stack) Promote(ctx context.Context, old int) (at int) {
	s.others(func(i int) { s.on(ctx, i, "STOP REPLICA IO_THREAD") }, old)
	at, received := s.most(ctx, old)
	s.on(ctx, at, "START REPLICA SQL_THREAD") // it runs, or somebody had stopped it
	s.caughtUp(ctx, at, received)
	s.on(ctx, at, "STOP REPLICA", "RESET REPLICA ALL")
	s.others(func(i int) { s.Follow(ctx, i, at) }, old, at)
	s.open(ctx, at)
	return at
}

// HasMost says which node has received or committed most.
func (s *Stack) HasMost(ctx context.Context) (at int) {
	at, _ = s.most(ctx, -1)
	return at
}

// most finds the node that has received or committed most, and what that is; except is a node not to ask.
func (s *Stack) most(ctx context.Context, except int) (at int, gtids string) {
	at = -1
	s.others(func(i int) {
		all := value[string](ctx, s, i, "SELECT CONCAT(@@GLOBAL.gtid_executed, ',', COALESCE((SELECT "+
			"GROUP_CONCAT(RECEIVED_TRANSACTION_SET) FROM performance_schema.replication_connection_status), ''))")
		if at < 0 || value[bool](ctx, s, i, "SELECT NOT GTID_SUBSET(?, ?)", all, gtids) {
			gtids, at = all, i
		}
	}, except)
	return at, gtids
}

func (s *Stack) executed(ctx context.Context, i int) string {
	return value[string](ctx, s, i, "SELECT @@GLOBAL.gtid_executed")
}

// caughtUp waits until a node has applied a set of transactions.
func (s *Stack) caughtUp(ctx context.Context, i int, gtids string) {
	if late := value[sql.NullBool](ctx, s, i, "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, 60)", gtids); late.Bool {
		said := value[string](ctx, s, i, "SELECT COALESCE(GROUP_CONCAT(SERVICE_STATE, LAST_ERROR_MESSAGE), '') "+
			"FROM performance_schema.replication_applier_status_by_worker")
		must.OK(fmt.Errorf("%s has not applied %s within a minute, but %s; its workers say %q", nodeName(i), gtids,
			s.executed(ctx, i), said))
	}
}

// Level waits until all others hold what one node does.
func (s *Stack) Level(ctx context.Context, source int) {
	all := s.executed(ctx, source)
	s.others(func(i int) { s.caughtUp(ctx, i, all) }, source)
}

// SwitchOver makes another node the source while the old one is well, and the old one its replica: nothing is lost.
// The source must be read-only already, and no transaction in it.
func (s *Stack) SwitchOver(ctx context.Context, old int) {
	s.Level(ctx, old)
	s.Follow(ctx, old, s.Promote(ctx, old))
}

// Reopen gives a source that comes back its clients again, when its replicas hold all that it has: what it had written
// and no replica had received is committed there by its start.
func (s *Stack) Reopen(ctx context.Context, source int) {
	s.Level(ctx, source)
	s.open(ctx, source)
}

// Rebuild makes a node that runs the replica of another one, with a copy of the other one's data in place of its own.
// It returns the transactions that only the node had, as a set of their GTIDs: nobody has promised that they last.
func (s *Stack) Rebuild(ctx context.Context, node, source int) (stray string) {
	const subtract = "SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, ?)"
	stray = value[string](ctx, s, node, subtract, s.executed(ctx, source))
	server := s.Databases[node]
	ended, donor := server.main.ended(), s.replicated.network.peer(source)
	// The node is to be started again by whoever looks after it; it says that as an error, or hangs up.
	err := must.Catch(func() {
		s.on(ctx, node, "SET GLOBAL super_read_only = OFF",
			"SET GLOBAL clone_valid_donor_list = '"+donor+":"+replicatedPort+"'",
			fmt.Sprintf("CLONE INSTANCE FROM '%s'@'%s':%s IDENTIFIED BY '%s'", replicationUser, donor, replicatedPort,
				s.replicated.peers))
	})
	select {
	case <-ended:
	case <-ctx.Done():
		must.OK(errors.Join(err, context.Cause(ctx)), "rebuild "+nodeName(node))
	}
	must.OK(server.start(ctx), "start "+nodeName(node)+" with its new data")
	s.Follow(ctx, node, source)
	return stray
}

// askWritable is not stopped when a source may be written to. A group's node says more: [askGroup].
func askWritable(ctx context.Context, db *sql.DB) {
	if must.Value[bool](ctx, db, "SELECT @@GLOBAL.read_only") {
		must.OK(errors.New("the node cannot be written to: it is read-only"))
	}
}

// askGroup is not stopped when the node is the primary of its group, may be written to, and hears of more than half of
// the group. That one that does not keeps its role and answers reads, with what was.
func askGroup(ctx context.Context, db *sql.DB) {
	must.Rows(ctx, db, "SELECT COALESCE(MAX(CASE WHEN MEMBER_ID = @@server_uuid THEN MEMBER_STATE END), ''), "+
		"COALESCE(MAX(CASE WHEN MEMBER_ID = @@server_uuid THEN MEMBER_ROLE END), ''), "+
		"COUNT(CASE WHEN MEMBER_STATE IN ('ONLINE', 'RECOVERING') THEN 1 END), COUNT(*) "+
		"FROM performance_schema.replication_group_members", func(scan func(...any)) {
		var state, role string
		var reachable, members int
		scan(&state, &role, &reachable, &members)
		if state != "ONLINE" || role != "PRIMARY" || 2*reachable <= members {
			must.OK(fmt.Errorf("the node cannot be written to: it is %s %s and reaches %d of %d", state, role, reachable,
				members))
		}
	})
	askWritable(ctx, db)
}
