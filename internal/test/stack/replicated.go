package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
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
	replicatedTimeout = 3 * time.Minute
	replicatedPort    = "3306" // each node has a network of its own
	replicationUser   = "replication"
)

// replicated is a cluster of MySQL's own replication in the making.
type replicated struct {
	server   program
	spawner  *spawner
	network  *network
	dir      string
	options  Options
	root     *mysql.Config // the address is each node's own
	password string        // of the account by which a node gets what another has
}

// replicatedNode is what a node needs to be started again.
type replicatedNode struct {
	*replicated
	at int
}

// startReplicated starts o.MySQLNodes nodes of MySQL and a HAProxy before them, which it returns.
func (s *Stack) startReplicated(ctx context.Context, o Options) (*Server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, replicatedTimeout, fmt.Errorf("it took over %v to come up",
		replicatedTimeout))
	defer cancel()
	way, err := s.tryReplicated(ctx, filepath.Join(s.dir, "replicated"), o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start MySQL with replication (%s): %w", o.Replication, err), s.endCluster())
	}
	return way, nil
}

func (s *Stack) tryReplicated(ctx context.Context, dir string, o Options) (*Server, error) {
	r, err := s.prepareReplicated(ctx, dir, o)
	if err != nil {
		return nil, err
	}
	for i := range o.MySQLNodes {
		s.Databases = append(s.Databases, r.node(i))
	}
	s.replicated = r
	for i, node := range s.Databases {
		if err := node.start(ctx); err != nil {
			return nil, fmt.Errorf("node %d: %w", i+1, err)
		}
		if o.Log != nil {
			fmt.Fprintf(o.Log, "%s node %d listens on %s, process id %d\n", KindMySQL, i+1, node.addr, node.Pid())
		}
	}
	if o.Replication == Group {
		err = s.Found(ctx, 0)
	} else {
		err = s.follow(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	return s.startHAProxy(ctx, dir)
}

// prepareReplicated makes the data of all nodes: that of the first one, with its accounts, and copies of it.
func (s *Stack) prepareReplicated(ctx context.Context, dir string, o Options) (*replicated, error) {
	server, err := findProgram("mysqld")
	if err != nil {
		return nil, err
	}
	const plugins = "/usr/lib/mysql/plugin"
	if _, err := os.Stat(filepath.Join(server.tree, plugins, "mysql_clone.so")); err != nil {
		return nil, fmt.Errorf("find the plugins of MySQL 8.4 or newer: %w", errors.Join(err, errNotInstalled))
	}
	r := &replicated{server: server, spawner: s.spawner, dir: dir, options: o, password: rand.Text()}
	if s.network, err = newNetwork(ctx, s.spawner, filepath.Join(dir, "network"), o.MySQLNodes); err != nil {
		return nil, err
	}
	r.network = s.network
	r.root = mysql.NewConfig()
	r.root.User, r.root.Passwd, r.root.Net = "root", rand.Text(), "tcp"
	if err := os.MkdirAll(r.folder(0), 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the first node: %w", err)
	}
	account, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("ask who runs the tests: %w", err)
	}
	base := []string{"--no-defaults", "--user=" + account.Username, "--datadir=" + filepath.Join(r.folder(0), "data")}
	if err := installMySQL(ctx, s.spawner, server, r.folder(0), base); err != nil {
		return nil, err
	}
	// The accounts are made once, without a trace in the binary log: they are in each node's data from the beginning.
	first := r.node(0, "--init-file="+filepath.Join(r.folder(0), "accounts.sql"))
	if err := os.WriteFile(filepath.Join(r.folder(0), "accounts.sql"), []byte(r.accounts()), 0o600); err != nil {
		return nil, fmt.Errorf("write the accounts of mysql: %w", err)
	}
	if err := first.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the first node, by itself: %w", err), first.end())
	}
	err = r.on(ctx, 0, "RESET BINARY LOGS AND GTIDS")
	if err := errors.Join(err, first.main.stop(stopTimeout)); err != nil {
		return nil, errors.Join(err, first.end())
	}
	if err := os.Remove(filepath.Join(r.folder(0), "data", "auto.cnf")); err != nil { // each has a name of its own
		return nil, fmt.Errorf("take away the name of the first node: %w", err)
	}
	for i := 1; i < o.MySQLNodes; i++ {
		if err := os.CopyFS(filepath.Join(r.folder(i), "data"), os.DirFS(filepath.Join(r.folder(0), "data"))); err != nil {
			return nil, fmt.Errorf("copy the data of the first node to %s: %w", nodeName(i), err)
		}
	}
	return r, nil
}

// accounts are of those who come from this machine or from another node.
func (r *replicated) accounts() string {
	return "SET sql_log_bin = 0;\n" +
		"CREATE USER 'root'@'%' IDENTIFIED BY '" + r.root.Passwd + "';\n" +
		"GRANT ALL PRIVILEGES ON *.* TO 'root'@'%' WITH GRANT OPTION;\n" +
		"CREATE USER '" + replicationUser + "'@'%' IDENTIFIED BY '" + r.password + "';\n" +
		"GRANT REPLICATION SLAVE, BACKUP_ADMIN, CONNECTION_ADMIN, GROUP_REPLICATION_STREAM ON *.* TO '" + replicationUser +
		"'@'%';\n"
}

func (r *replicated) folder(node int) string { return filepath.Join(r.dir, nodeName(node)) }

// node makes a node that does not run yet.
func (r *replicated) node(i int, more ...string) *Server {
	dir := r.folder(i)
	own := r.root.Clone()
	own.Addr = r.network.client(i) + ":" + replicatedPort
	args := append(r.args(i), more...)
	return &Server{
		kind: KindMySQL, dir: dir, addr: own.Addr, url: own.FormatDSN(), replicated: &replicatedNode{r, i},
		main: &process{
			name: "mysql " + nodeName(i), spawner: r.spawner, logPath: filepath.Join(dir, "mysql.log"),
			command: func() *exec.Cmd { return r.network.enter(i, r.server, dir, environment(dir), args...) },
		},
		ask: func(ctx context.Context) error {
			db, err := openMySQL(own.FormatDSN())
			if err != nil {
				return err
			}
			defer db.Close()
			return db.PingContext(ctx)
		},
	}
}

// args keep a node small. What it promises is on the disk before it is answered, as everywhere where a source may come
// back. A node starts read-only: whoever makes it the one that is written to says so.
func (r *replicated) args(i int) []string {
	dir := r.folder(i)
	args := []string{
		"--no-defaults", "--user=root", "--datadir=" + filepath.Join(dir, "data"), "--port=" + replicatedPort,
		"--bind-address=*", "--mysqlx=OFF", "--skip-name-resolve", "--socket=" + filepath.Join(dir, "s"),
		"--pid-file=" + filepath.Join(dir, "pid"), "--tmpdir=" + dir, "--max-connections=500",
		"--innodb-buffer-pool-size=128M", "--innodb-redo-log-capacity=64M", "--performance-schema-instrument=%=OFF",
		"--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", fmt.Sprintf("--server-id=%d", i+1),
		"--report-host=" + r.network.peer(i), "--report-port=" + replicatedPort,
		"--log-bin=binlog", "--relay-log=relay", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
		"--log-bin-trust-function-creators=ON", "--relay-log-recovery=ON", "--replica-net-timeout=4",
		"--plugin-load-add=mysql_clone.so",
	}
	switch r.options.Replication {
	case Group:
		var peers []string
		for j := range r.options.MySQLNodes {
			peers = append(peers, r.groupAddr(j))
		}
		args = append(args, "--plugin-load-add=group_replication.so",
			"--group-replication-group-name=5f0c1a52-6a53-4b0e-9d3b-7f3a52c4d101",
			"--group-replication-start-on-boot=OFF", "--group-replication-local-address="+r.groupAddr(i),
			"--group-replication-group-seeds="+strings.Join(peers, ","),
			"--group-replication-ip-allowlist="+peerRange+"0/24,127.0.0.1/8",
			"--group-replication-message-cache-size=134217728", "--group-replication-recovery-get-public-key=ON")
	case SemiSync:
		args = append(args, "--plugin-load-add=semisync_source.so", "--plugin-load-add=semisync_replica.so",
			"--rpl-semi-sync-source-enabled=OFF", "--rpl-semi-sync-replica-enabled=ON",
			"--rpl-semi-sync-source-timeout=4294967295", "--rpl-semi-sync-source-wait-point=AFTER_SYNC")
		fallthrough
	default:
		args = append(args, "--super-read-only=ON")
	}
	return append(args, r.options.MySQLArgs...)
}

const groupPort = "33061"

func (r *replicated) groupAddr(i int) string { return r.network.peer(i) + ":" + groupPort }

// on runs statements on a node, over one connection.
func (r *replicated) on(ctx context.Context, i int, statements ...string) error {
	db, err := r.connect(i)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", nodeName(i), err)
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %s: %w", nodeName(i), strings.ReplaceAll(s, r.password, "…"), err)
		}
	}
	return nil
}

// value asks a node for one value.
func (r *replicated) value(ctx context.Context, i int, into any, query string, args ...any) error {
	db, err := r.connect(i)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.QueryRowContext(ctx, query, args...).Scan(into); err != nil {
		return fmt.Errorf("%s: %s: %w", nodeName(i), query, err)
	}
	return nil
}

func (r *replicated) connect(i int) (*sql.DB, error) {
	own := r.root.Clone()
	own.Addr = r.network.client(i) + ":" + replicatedPort
	return openMySQL(own.FormatDSN())
}

// Found makes one node found the group of [Group], and the others join it, as a person does after all were away. It
// returns when all are in it.
func (s *Stack) Found(ctx context.Context, founder int) error {
	r := s.replicated
	join := fmt.Sprintf("START GROUP_REPLICATION USER = '%s', PASSWORD = '%s'", replicationUser, r.password)
	err := r.on(ctx, founder, "SET GLOBAL group_replication_bootstrap_group = ON", join,
		"SET GLOBAL group_replication_bootstrap_group = OFF")
	if err != nil {
		return err
	}
	if err := s.inGroup(ctx, founder); err != nil {
		return err
	}
	for i := range s.Databases {
		if i == founder {
			continue
		}
		if err := s.Join(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// Join lets a node join the group that the others form, and returns when it has what it missed.
func (s *Stack) Join(ctx context.Context, i int) error {
	r := s.replicated
	join := fmt.Sprintf("START GROUP_REPLICATION USER = '%s', PASSWORD = '%s'", replicationUser, r.password)
	if err := r.on(ctx, i, join); err != nil {
		return err
	}
	return s.inGroup(ctx, i)
}

// inGroup waits until a node takes itself for one of the group.
func (s *Stack) inGroup(ctx context.Context, i int) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		var state string
		err := s.replicated.value(ctx, i, &state, "SELECT MEMBER_STATE FROM performance_schema.replication_group_members "+
			"WHERE MEMBER_ID = @@server_uuid")
		if err == nil && state == "ONLINE" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not in the group, but %q: %w", nodeName(i), state, errors.Join(context.Cause(ctx), err))
		}
	}
}

// follow makes all others replicas of one node, which is written to from then on.
func (s *Stack) follow(ctx context.Context, source int) error {
	for i := range s.Databases {
		if i == source {
			continue
		}
		if err := s.Follow(ctx, i, source); err != nil {
			return err
		}
	}
	return s.replicated.open(ctx, source)
}

// open makes a node the one that is written to. Only there commits may wait for a replica: one that applies what its
// source has committed would wait for replicas of its own.
func (r *replicated) open(ctx context.Context, i int) error {
	statements := []string{"SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF"}
	if r.options.Replication == SemiSync {
		statements = slices.Insert(statements, 0, "SET GLOBAL rpl_semi_sync_source_enabled = ON")
	}
	return r.on(ctx, i, statements...)
}

// Follow makes a node the replica of another one.
func (s *Stack) Follow(ctx context.Context, replica, source int) error {
	r := s.replicated
	change := fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', "+
		"SOURCE_PORT = %s, SOURCE_USER = '%s', SOURCE_PASSWORD = '%s', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "+
		"SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 86400, SOURCE_HEARTBEAT_PERIOD = 1", r.network.peer(source),
		replicatedPort, replicationUser, r.password)
	statements := []string{"SET GLOBAL super_read_only = ON", "STOP REPLICA", change, "START REPLICA"}
	if r.options.Replication == SemiSync {
		statements = slices.Insert(statements, 0, "SET GLOBAL rpl_semi_sync_source_enabled = OFF")
	}
	return r.on(ctx, replica, statements...)
}

// askWritable is nil when a source may be written to. A group's node says more: [askGroup].
func askWritable(ctx context.Context, db *sql.DB) error {
	var readOnly bool
	if err := db.QueryRowContext(ctx, "SELECT @@GLOBAL.read_only").Scan(&readOnly); err != nil {
		return fmt.Errorf("ask for the state of the node: %w", err)
	}
	if readOnly {
		return errors.New("the node cannot be written to: it is read-only")
	}
	return nil
}

// askGroup is nil when the node is the primary of its group, may be written to, and hears of more than half of the
// group. That one that does not keeps its role and answers reads, with what was.
func askGroup(ctx context.Context, db *sql.DB) error {
	var state, role string
	var reachable, members int
	err := db.QueryRowContext(ctx, "SELECT COALESCE(MAX(CASE WHEN MEMBER_ID = @@server_uuid THEN MEMBER_STATE END), ''), "+
		"COALESCE(MAX(CASE WHEN MEMBER_ID = @@server_uuid THEN MEMBER_ROLE END), ''), "+
		"COUNT(CASE WHEN MEMBER_STATE IN ('ONLINE', 'RECOVERING') THEN 1 END), COUNT(*) "+
		"FROM performance_schema.replication_group_members").Scan(&state, &role, &reachable, &members)
	if err != nil {
		return fmt.Errorf("ask for the state of the node: %w", err)
	}
	if state != "ONLINE" || role != "PRIMARY" || 2*reachable <= members {
		return fmt.Errorf("the node cannot be written to: it is %s %s and reaches %d of %d", state, role, reachable, members)
	}
	return askWritable(ctx, db)
}

// CutOff takes a node's line to the other nodes away, for packets in both directions. Clients still reach it.
func (s *Stack) CutOff(ctx context.Context, node *Server) error {
	return s.network.cut(ctx, s.Index(node))
}

// Mend gives the line back.
func (s *Stack) Mend(ctx context.Context, node *Server) error {
	return s.network.mend(ctx, s.Index(node))
}
