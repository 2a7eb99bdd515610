package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// databaseNodes is how many nodes a database cluster has.
const databaseNodes = 3

// cluster is what differs between the kinds of database clusters.
type cluster struct {
	phase  string
	stream uint64 // of chance
	name   string // what a node says of its name, in SQL
	// causal are the settings of a session that reads what the cluster has committed.
	causal map[string]string
	// sees asks a node of how many it knows that they are well; seen is how many it must say.
	sees string
	// preferred is whether everybody is sent to the first node again when all are well.
	preferred bool
	// back makes a node that runs one of the cluster again.
	back act
	// level waits until all nodes hold the same; nil: who reads causally has waited.
	level func(context.Context, *world) error
}

func clusterOf(replication stack.Replication) cluster {
	return map[stack.Replication]cluster{
		stack.Galera: {phase: "databases", stream: 200, name: "@@GLOBAL.wsrep_node_name",
			causal: map[string]string{"wsrep_sync_wait": "1"}, preferred: true, back: awaitNode,
			sees: "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'WSREP_CLUSTER_SIZE'"},
		stack.Group: {phase: "group", stream: 300, name: "CONCAT('node', @@GLOBAL.server_id)",
			causal: map[string]string{"group_replication_consistency": "'BEFORE'"}, back: joinGroup,
			sees: "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"},
		// The source counts its replicas and itself, and a replica the threads that work for it.
		stack.SemiSync: {phase: "semisync", stream: 400, name: "CONCAT('node', @@GLOBAL.server_id)", level: levelReplicas,
			back: followSource,
			sees: "SELECT CASE WHEN @@GLOBAL.read_only THEN 1 + (SELECT COUNT(*) FROM performance_schema." +
				"replication_connection_status WHERE SERVICE_STATE = 'ON') + (SELECT COUNT(*) FROM performance_schema." +
				"replication_applier_status WHERE SERVICE_STATE = 'ON') ELSE 1 + (SELECT VARIABLE_VALUE FROM " +
				"performance_schema.global_status WHERE VARIABLE_NAME = 'Rpl_semi_sync_source_clients') END"},
		stack.Async: {phase: "async", name: "CONCAT('node', @@GLOBAL.server_id)", level: levelReplicas},
	}[replication]
}

func (w *world) cluster() cluster { return clusterOf(w.o.Replication) }

// databaseFaults hit a database cluster of Galera. The primary is the node that the proxy before it sends everybody to.
func databaseFaults() []fault {
	kinds := []fault{
		{name: "database kill -9", most: 10 * time.Second, strike: failover(killNode, nil, startNode)},
		{name: "database frozen", least: 15 * time.Second, most: 25 * time.Second,
			strike: failover(freezeNode, nil, thawNode)},
		{name: "database cut off", least: 15 * time.Second, most: 25 * time.Second,
			strike: failover(set("wsrep_provider_options = 'gmcast.isolate=1'"), nil,
				set("wsrep_provider_options = 'gmcast.isolate=0'"))},
		{name: "database read_only", least: 3 * time.Second, most: 10 * time.Second,
			strike: failover(set("read_only = ON"), nil, set("read_only = OFF"))},
		{name: "database refuses queries", least: 3 * time.Second, most: 10 * time.Second,
			strike: failover(set("wsrep_reject_queries = ALL"), nil, set("wsrep_reject_queries = NONE"))},
		{name: "all databases kill -9", most: 5 * time.Second, strike: killAllNodes(nil)},
		{name: "other database frozen", unit: "times resumed", least: 8 * time.Second, most: 20 * time.Second,
			strike: freezeOther},
		lonely("database conflicts", "transactions of daemons undone", 8, 8, 15, conflicts),
		lonely("other database lags", "write sets behind", 6, 6, 12, lag),
	}
	return ofCluster(stack.Galera, kinds)
}

// ofCluster fills in what all faults of a kind of cluster have in common.
func ofCluster(replication stack.Replication, kinds []fault) []fault {
	for i := range kinds {
		kinds[i].nodes, kinds[i].databases, kinds[i].replication = 0, databaseNodes, replication
		if kinds[i].unit == "" {
			kinds[i].unit = "primaries lost"
		}
		if kinds[i].targets == nil {
			kinds[i].targets = on(onMySQL)
		}
	}
	return kinds
}

// besideDatabases are the other kinds that a run with a database cluster has: they make a COMMIT's outcome unknown, or
// end a daemon, at any moment of a failover.
var besideDatabases = []string{
	"daemon kill -9", "daemon SIGTERM", "daemon frozen", "mysql lost COMMIT reply", "mysql lost COMMIT",
	"mysql link resets", "mysql link silent", "redis kill -9",
}

// act is what befalls a node.
type act = func(context.Context, *world, *stack.Server) error

func killNode(_ context.Context, _ *world, node *stack.Server) error   { return node.Kill() }
func startNode(_ context.Context, _ *world, node *stack.Server) error  { return node.Start() }
func freezeNode(_ context.Context, _ *world, node *stack.Server) error { return node.Freeze() }
func thawNode(_ context.Context, _ *world, node *stack.Server) error   { return node.Thaw() }

func cutOffNode(ctx context.Context, w *world, node *stack.Server) error {
	return w.stack.CutOff(context.WithoutCancel(ctx), node)
}

func mendNode(ctx context.Context, w *world, node *stack.Server) error {
	return w.stack.Mend(context.WithoutCancel(ctx), node)
}

// set sets a global variable of the node, over a connection of its own.
func set(variable string) act {
	return func(ctx context.Context, w *world, node *stack.Server) error {
		db, err := w.openNode(node)
		if err != nil {
			return err
		}
		defer db.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // what was begun is ended too
		defer cancel()
		if _, err := db.ExecContext(ctx, "SET GLOBAL "+variable); err != nil {
			return fmt.Errorf("%s: SET GLOBAL %s: %w", node.NodeName(), variable, err)
		}
		return nil
	}
}

// openNode opens the shop on one node, past the proxy. Reading there waits for what the cluster has committed.
func (w *world) openNode(node *stack.Server) (*sql.DB, error) {
	config, err := mysql.ParseDSN(node.URL())
	if err != nil {
		return nil, fmt.Errorf("parse the DSN of %s: %w", node.NodeName(), err)
	}
	config.DBName, config.Logger, config.Params = database, &mysql.NopLogger{}, w.cluster().causal
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", node.NodeName(), err)
	}
	return sql.OpenDB(connector), nil
}

// failover does something to the primary, waits until another node has its place and messages are applied again, and
// undoes it. It has hit when they are. Where the nodes do not find out by themselves who takes the place, takeOver does
// what somebody has to do.
func failover(away, takeOver, back act) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		at, err := w.primary(ctx)
		if err != nil {
			return 0, err
		}
		node := w.stack.Databases[at]
		w.flowing(ctx)
		w.charge(daemons)
		if err := away(ctx, w, node); err != nil {
			return 0, errors.Join(err, back(ctx, w, node))
		}
		since := time.Now()
		if takeOver != nil {
			if err := takeOver(ctx, w, node); err != nil {
				return 0, errors.Join(err, back(ctx, w, node))
			}
		}
		hits := w.resumed(ctx, p.fault.name, since)
		now, err := w.primary(ctx)
		if now == at {
			w.say("%s: the proxy still sends everybody to %s", p.fault.name, node.NodeName())
			hits = 0
		}
		_ = wait.For(ctx, p.lasts-time.Since(since))
		if err := errors.Join(err, back(ctx, w, node)); err != nil {
			return hits, err
		}
		return hits, w.rejoined(ctx, node)
	}
}

// rejoined waits until the node is one of the cluster again, and everybody is sent to the first node if that is always
// so when all are well.
func (w *world) rejoined(ctx context.Context, node *stack.Server) error {
	c := w.cluster()
	if err := c.back(ctx, w, node); err != nil {
		return err
	}
	const patience = 90 * time.Second
	whole := func() bool {
		at, err := w.primary(ctx)
		return err == nil && (at == 0 || !c.preferred) && w.together(ctx) == nil
	}
	if !until(ctx, patience, whole) && ctx.Err() == nil {
		return fmt.Errorf("the database cluster is not whole after %v: %w", patience, w.together(ctx))
	}
	return nil
}

// awaitNode waits until a node of Galera may be written to. One may end by itself when it finds that it cannot be one
// of the cluster.
func awaitNode(_ context.Context, w *world, node *stack.Server) error {
	err := node.Await()
	if err != nil && node.Pid() == 0 {
		w.say("%s has ended by itself, and is started again", node.NodeName())
		err = node.Start()
	}
	return err
}

// together is nil when each node sees all others. One that was frozen takes itself for one of the cluster until it
// hears of the others that it is not.
func (w *world) together(ctx context.Context) error {
	for _, node := range w.stack.Databases {
		if err := w.seesAll(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) seesAll(ctx context.Context, node *stack.Server) error {
	db, err := w.openNode(node)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	seen := 0
	err = db.QueryRowContext(ctx, w.cluster().sees).Scan(&seen)
	if err == nil && seen < databaseNodes {
		err = fmt.Errorf("it sees %d nodes", seen)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", node.NodeName(), err)
	}
	return nil
}

// flowing waits until messages are applied, so that a fault meets some, and its pause is its own.
func (w *world) flowing(ctx context.Context) {
	began := time.Now()
	until(ctx, time.Minute, func() bool { return w.appliedSince(ctx, began) })
}

// appliedSince says whether a message was applied by a transaction of later than that. The clocks of the servers are
// ours: they run on this machine.
func (w *world) appliedSince(ctx context.Context, since time.Time) bool {
	var one int
	return w.ask(ctx, &one, "SELECT 1 FROM consumer_log WHERE consumer_status = 1 AND consumer_timestamp > ? LIMIT 1",
		since.UTC().Format("2006-01-02 15:04:05.000000")) == nil
}

// primary waits until the proxy leads to a node, and says to which.
func (w *world) primary(ctx context.Context) (at int, err error) {
	const patience = time.Minute
	found := until(ctx, patience, func() bool {
		var name string
		err = w.ask(ctx, &name, "SELECT "+w.cluster().name)
		at = slices.IndexFunc(w.stack.Databases, func(node *stack.Server) bool { return node.NodeName() == name })
		return err == nil && at >= 0
	})
	if !found {
		return -1, fmt.Errorf("the proxy has led to no node of the database cluster for %v: %w", patience,
			errors.Join(err, context.Cause(ctx)))
	}
	return at, nil
}

// ask asks for one value, for a second at most.
func (w *world) ask(ctx context.Context, into any, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return w.db.QueryRowContext(ctx, query, args...).Scan(into)
}

// resumed waits for the first message that is applied after a fault, and notes how long that took.
func (w *world) resumed(ctx context.Context, name string, since time.Time) (hits int) {
	const patience = 2 * time.Minute
	applied := until(ctx, patience, func() bool { return w.appliedSince(ctx, since) })
	took := time.Since(since)
	switch {
	case ctx.Err() != nil:
		return 0
	case !applied:
		w.violation("%s: no message was applied for %v", name, patience)
		return 0
	}
	w.say("%s: the first message was applied after %.1fs", name, took.Seconds())
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pauses[name] = append(w.pauses[name], took)
	return 1
}

// killAllNodes is a power cut that takes all nodes at once, but leaves what they have written. Started again side by
// side, those of Galera find each other by what they remember of their last cluster; for the others somebody has to do
// something.
func killAllNodes(reopen func(ctx context.Context, w *world, primary int) error) strike {
	return func(ctx context.Context, w *world, p planned) (int, error) {
		at, err := w.primary(ctx)
		if err != nil {
			return 0, err
		}
		w.flowing(ctx)
		w.charge(daemons)
		var errs []error
		for _, node := range w.stack.Databases {
			errs = append(errs, node.Kill())
		}
		since := time.Now()
		_ = wait.For(ctx, p.lasts)
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, node := range w.stack.Databases {
			wg.Go(func() {
				err := node.Start()
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
		if reopen != nil {
			if err := reopen(ctx, w, at); err != nil {
				return 0, err
			}
		}
		hits := w.resumed(ctx, p.fault.name, since)
		return hits, w.rejoined(ctx, w.stack.Databases[0])
	}
}

// other is the node that takes the primary's place last.
func (w *world) other(ctx context.Context) (*stack.Server, error) {
	at, err := w.primary(ctx)
	if err != nil {
		return nil, err
	}
	if last := len(w.stack.Databases) - 1; at != last {
		return w.stack.Databases[last], nil
	}
	return w.stack.Databases[0], nil
}

// openOther opens it.
func (w *world) openOther(ctx context.Context) (node *stack.Server, db *sql.DB, err error) {
	if node, err = w.other(ctx); err != nil {
		return nil, nil, err
	}
	db, err = w.openNode(node)
	return node, db, err
}

// freezeOther freezes a node that nobody is sent to. Those of Galera commit nothing until they have taken it for gone.
func freezeOther(ctx context.Context, w *world, p planned) (int, error) {
	node, err := w.other(ctx)
	if err != nil {
		return 0, err
	}
	w.flowing(ctx)
	w.charge(daemons)
	if err := node.Freeze(); err != nil {
		return 0, err
	}
	since := time.Now()
	hits := w.resumed(ctx, p.fault.name, since)
	_ = wait.For(ctx, p.lasts-time.Since(since))
	if err := node.Thaw(); err != nil {
		return hits, err
	}
	return hits, w.rejoined(ctx, node)
}

// conflicts is a colleague who writes the goods of the daemons' messages on another node. Whose write set the cluster
// orders later is undone there, if need be at COMMIT: that is the daemons' bad luck, and none of their messages' fault.
func conflicts(ctx context.Context, w *world, p planned) (int, error) {
	node, db, err := w.openOther(ctx)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	before, err := w.undone(ctx)
	if err != nil {
		return 0, err
	}
	const several = 10
	written := 0
	for end, i := time.Now().Add(p.lasts), int(p.variant); time.Now().Before(end) && ctx.Err() == nil; i++ {
		var goods []any
		for j := range several {
			goods = append(goods, (i+j*skus/several)%skus+1)
		}
		if writeGoods(ctx, db, goods...) == nil { // else it lost against a daemon
			written++
		}
		_ = wait.For(ctx, 20*time.Millisecond)
	}
	after, err := w.undone(ctx)
	w.say("database conflicts: %d transactions on %s undid %d at the primary", written, node.NodeName(), after-before)
	return after - before, err
}

// writeGoods changes rows and changes them back, in one transaction: the sums stay what they are.
func writeGoods(ctx context.Context, db *sql.DB, goods ...any) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // it has ended, or is of no use
	among := " WHERE sku_id IN (" + strings.TrimSuffix(strings.Repeat("?,", len(goods)), ",") + ")"
	for _, change := range []string{"+ 1", "- 1"} {
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET amount = amount "+change+among, goods...); err != nil {
			return fmt.Errorf("write goods: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// undone counts the transactions that the primary has undone for those of other nodes.
func (w *world) undone(ctx context.Context) (n int, err error) {
	err = w.ask(ctx, &n, "SELECT CAST(SUM(VARIABLE_VALUE) AS SIGNED) FROM information_schema.GLOBAL_STATUS WHERE "+
		"VARIABLE_NAME IN ('WSREP_LOCAL_CERT_FAILURES', 'WSREP_LOCAL_BF_ABORTS')")
	if err != nil {
		return 0, fmt.Errorf("count what was undone: %w", err)
	}
	return n, nil
}

// lag makes a node that nobody is sent to fall behind, as a backup does that takes the global read lock.
func lag(ctx context.Context, w *world, p planned) (hits int, err error) {
	node, db, err := w.openOther(ctx)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	conn, err := db.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("connect to %s: %w", node.NodeName(), err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "SET SESSION wsrep_sync_wait = 0"); err != nil { // it would wait for itself
		return 0, fmt.Errorf("read from %s as it is: %w", node.NodeName(), err)
	}
	if _, err := conn.ExecContext(ctx, "FLUSH TABLES WITH READ LOCK"); err != nil {
		return 0, fmt.Errorf("lock %s: %w", node.NodeName(), err)
	}
	_ = wait.For(ctx, p.lasts)
	err = conn.QueryRowContext(ctx, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "+
		"'WSREP_LOCAL_RECV_QUEUE'").Scan(&hits)
	_, unlock := conn.ExecContext(context.WithoutCancel(ctx), "UNLOCK TABLES")
	if err := errors.Join(err, unlock); err != nil {
		return hits, fmt.Errorf("let %s go on: %w", node.NodeName(), err)
	}
	return hits, w.rejoined(ctx, node)
}

// agree looks whether all nodes of a database cluster hold the same.
func (w *world) agree(ctx context.Context) error {
	if level := w.cluster().level; level != nil && w.o.Databases > 1 {
		if err := level(ctx, w); err != nil {
			return err
		}
	}
	sums := map[string]map[string][]string{} // by table and sum
	for _, node := range w.stack.Databases {
		db, err := w.openNode(node)
		if err != nil {
			return err
		}
		err = func() error {
			defer db.Close()
			for _, table := range tables {
				var rows int // which waits for what the cluster has committed
				if err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table).Scan(&rows); err != nil {
					return err
				}
				var name, sum string
				if err := db.QueryRowContext(ctx, "CHECKSUM TABLE "+table).Scan(&name, &sum); err != nil {
					return err
				}
				if sums[table] == nil {
					sums[table] = map[string][]string{}
				}
				what := fmt.Sprintf("%d rows, checksum %s", rows, sum)
				sums[table][what] = append(sums[table][what], node.NodeName())
			}
			return nil
		}()
		if err != nil {
			return fmt.Errorf("compare the nodes of the database cluster: %s: %w", node.NodeName(), err)
		}
	}
	for _, table := range tables {
		if len(sums[table]) > 1 {
			w.violation("the nodes of the database cluster hold different rows of %s: %v", table, sums[table])
		}
	}
	return nil
}
