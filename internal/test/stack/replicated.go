package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

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
