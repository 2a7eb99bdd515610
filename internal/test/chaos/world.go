package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const (
	database = "shop"
	account  = "rollbackd" // of the daemons, so that its rights can be revoked
	skus     = 200
)

// What is counted besides hits.
const (
	charges = "attempts charged" // daemons whose lanes a fault may have cost the attempt they had claimed
	begun   = "faults begun"
	ended   = "faults ended"
	broken  = "schema broken" // faults after which a daemon that starts may refuse the schema
	strays  = "sources with transactions of their own"
)

// world is one run: servers, links, daemons and load.
type world struct {
	o       Options
	plan    []planned
	stack   *stack.Stack
	amqp    []*stack.TCPProxy // between the daemons and each node
	mysql   *stack.TCPProxy   // of a database cluster, before the proxy that leads to one of its nodes
	redis   *stack.TCPProxy
	db      *sql.DB // of root, not through the proxy of the daemons
	broker  *broker
	environ []string
	asRoot  []string // environ with an account that may migrate
	planted int      // numbers what faults plant

	aged        int // numbers the rows made to be pruned; only that job counts on
	compensated int // letters that the daemons replayed by themselves; likewise
	killed      int // replays; likewise

	fleet   *fleet
	load    *load
	oracle  oracle.World
	before  oracle.Stock
	targets map[string]*sync.Mutex
	began   time.Time

	mu         sync.Mutex
	struck     map[string]*Struck // guarded by mu
	counts     map[string]int     // guarded by mu
	violations []string           // guarded by mu
	done       map[string]*Struck // by job; guarded by mu

	pauses map[string][]time.Duration // by fault of a database cluster; guarded by mu
}

var retryDelays = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}

func newWorld(ctx context.Context, o Options, plan []planned) (w *world, err error) {
	w = &world{o: o, plan: plan, began: time.Now(), struck: map[string]*Struck{}, counts: map[string]int{},
		targets: map[string]*sync.Mutex{}}
	w.done, w.pauses = map[string]*Struck{}, map[string][]time.Duration{}
	for _, target := range []string{onRabbit, onMySQL, onRedis, onDaemon0, onDaemon1} {
		w.targets[target] = new(sync.Mutex)
	}
	w.say("seed %d: %d entries are planned for %d RabbitMQ nodes", o.Seed, len(plan), o.Nodes)
	heartbeat := 10 // seconds, what the daemons ask for
	if o.Round {
		heartbeat = 3
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	servers := stack.Options{
		RabbitMQNodes: o.Nodes, RabbitMQConfig: fmt.Sprintf("heartbeat = %d\ncluster_partition_handling = pause_minority",
			heartbeat), MySQLNodes: o.Databases, Replication: o.Replication, Log: o.Out,
	}
	if slices.ContainsFunc(plan, func(p planned) bool { return p.fault.name == diskFull }) {
		servers.MySQLDisk = diskSize
	}
	w.stack, err = stack.Start(ctx, servers)
	if errors.Is(err, stack.ErrNoDisk) {
		w.leaveOut(diskFull, err)
		servers.MySQLDisk = 0
		w.stack, err = stack.Start(ctx, servers)
	}
	if err != nil {
		return w, err
	}
	for _, step := range []func(context.Context) error{w.link, w.openShop, w.migrate, w.fill} {
		if err := step(ctx); err != nil {
			return w, fmt.Errorf("make the world: %w", err)
		}
	}
	w.fleet, err = newFleet(w)
	return w, err
}

// leaveOut takes a kind of fault that this machine does not allow out of the plan, and says why.
func (w *world) leaveOut(name string, why error) {
	w.plan = slices.DeleteFunc(w.plan, func(p planned) bool { return p.fault.name == name })
	w.say("%s is left out: %v", name, why)
}

// link puts a proxy on each link of the daemons.
func (w *world) link(context.Context) (err error) {
	proxy := func(target string) (*stack.TCPProxy, error) {
		return stack.NewProxy(target, func(format string, args ...any) { w.violation("proxy: "+format, args...) })
	}
	for _, node := range w.stack.Nodes {
		p, err := proxy(node.Addr())
		if err != nil {
			return err
		}
		w.amqp = append(w.amqp, p)
	}
	if w.mysql, err = proxy(w.stack.MySQL.Addr()); err != nil {
		return err
	}
	w.redis, err = proxy(w.stack.Redis.Addr())
	return err
}

// openShop makes the database, the daemons' account and their settings.
func (w *world) openShop(ctx context.Context) error {
	root, err := mysql.ParseDSN(w.stack.MySQL.URL())
	if err != nil {
		return fmt.Errorf("parse the DSN: %w", err)
	}
	root.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(root)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	first := sql.OpenDB(connector)
	defer first.Close()
	for _, statement := range []string{
		"CREATE DATABASE " + database,
		fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", account, account),
		fmt.Sprintf("GRANT SELECT ON %s.* TO '%s'@'%%'", database, account),
	} {
		if _, err := first.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	root.DBName, root.Timeout, root.ReadTimeout = database, 5*time.Second, 40*time.Second // a server may be frozen
	if w.o.Databases > 1 {
		root.Params = w.cluster().causal // what is read is what the cluster has committed
	}
	if connector, err = mysql.NewConnector(root); err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	w.db = sql.OpenDB(connector)
	w.broker = &broker{nodes: w.stack.Nodes}

	own := root.Clone()
	own.Params = nil // the daemons see to it themselves
	own.User, own.Passwd, own.Addr = account, account, w.mysql.Addr
	own.Timeout, own.ReadTimeout = 0, 0
	urls, direct := []string{}, []string{}
	for i, node := range w.stack.Nodes {
		urls, direct = append(urls, w.amqp[i].Through(node.URL())), append(direct, node.URL())
	}
	w.environ = environ(map[string]string{
		"AMQP_URL": strings.Join(urls, ","), "MYSQL_DSN": own.FormatDSN(), "REDIS_URL": w.redis.Through(w.stack.Redis.URL()),
		"HTTP_ADDR": "127.0.0.1:0", "LOG_FORMAT": "json", "LANES": fmt.Sprint(lanes), "BATCH_SIZE": "100",
		"MAX_ATTEMPTS": fmt.Sprint(maxAttempts),
		"RETRY_DELAYS": "200ms,500ms,1s,2s", "HANDLER_TIMEOUT": handlerTime.String(), "LEASE": "15s", "LOCK_TTL": "2s",
		"DONE_TTL":      "10s",
		"DRAIN_TIMEOUT": drainTimeout.String(), "BRAKE_PAUSE": "5s",
	})
	w.oracle = oracle.World{
		DB: w.db, LogTable: "consumer_log", Group: "stock-rollback",
		KeyFrom: "header:x-message-key,property:message_id,body:sha256",
		AMQPURL: direct[0], Queue: queue, Delays: retryDelays, Unacked: func(queue string) (int, error) {
			return w.broker.unacked(ctx, queue)
		},
	}
	w.load = &load{w: w, urls: direct, route: shop.Route{Exchange: "stock", Key: "stock.rollback"}}
	w.load.ledger, err = w.oracle.NewLedger()
	return err
}

func environ(settings map[string]string) (env []string) {
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		env = append(env, "ROLLBACKD_"+name+"="+settings[name])
	}
	return env
}

// migrate makes tables and topology with the binary's own command, as root, and gives the daemons' account the rights
// on each table that the documentation asks for. Rights on a table can be revoked at once; those on a whole database
// stay with the connections there are.
func (w *world) migrate(ctx context.Context) error {
	root, err := mysql.ParseDSN(w.stack.MySQL.URL())
	if err != nil {
		return fmt.Errorf("parse the DSN: %w", err)
	}
	root.DBName = database
	w.asRoot = append(slices.Clone(w.environ), "ROLLBACKD_MYSQL_DSN="+root.FormatDSN()) // the later one counts
	if _, err := program.Run(ctx, w.o.Binary, w.asRoot, "migrate"); err != nil {
		return err
	}
	for _, table := range tables {
		if err := w.grant(ctx, table); err != nil {
			return err
		}
	}
	return oracle.Audit(ctx, w.db)
}

// tables are what the daemons write.
var tables = []string{"stock", "stock_reservation", "consumer_log", "consumer_log_event", "rollbackd_meta"}

func (w *world) grant(ctx context.Context, table string) error {
	_, err := w.db.ExecContext(ctx, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s.%s TO '%s'@'%%'",
		database, table, account))
	if err != nil {
		return fmt.Errorf("give the daemons their rights: %w", err)
	}
	return nil
}

// close stops everything that newWorld has started.
func (w *world) close() error {
	var errs []error
	if w.db != nil {
		errs = append(errs, w.db.Close())
	}
	for _, p := range append(slices.Clone(w.amqp), w.mysql, w.redis) {
		if p != nil {
			p.Close()
		}
	}
	if w.stack != nil {
		errs = append(errs, w.stack.Stop())
	}
	return errors.Join(errs...)
}

// settle waits until nothing is left to do: all queues but the dead letters' are empty, nothing is unacked and no row
// is open.
//
// It waits for RabbitMQ too: a queue that was moving what expired into another whose leader is lost sends that again
// after dead_letter_worker_publisher_confirm_timeout, three minutes unless it is set, and looks for such messages only
// as often as that.
func (w *world) settle(ctx context.Context) time.Duration {
	const patience = 2*3*time.Minute + time.Minute
	began := time.Now()
	var last error
	rest := until(ctx, patience, func() bool {
		last = errors.Join(w.broker.idle(ctx), w.noOpenRow(ctx))
		return last == nil
	})
	if !rest {
		w.violation("not at rest %v after the last fault: %v", patience, last)
	}
	return time.Since(began)
}

func (w *world) noOpenRow(ctx context.Context) error {
	var open int
	if err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2)").Scan(
		&open); err != nil {
		return fmt.Errorf("ask for open rows: %w", err)
	}
	if open > 0 {
		return fmt.Errorf("%d rows are open", open)
	}
	return nil
}

// noLeaks compares the daemons' goroutines with those of two that had just started.
func (w *world) noLeaks(before, after [daemons]int) {
	const slack = 40 // a connection of the pool more or less has one or two
	for i := range after {
		if after[i] == 0 || after[i] > before[i]+slack {
			w.violation("daemon %d has %d goroutines at rest, the first one had %d", i, after[i], before[i])
		}
	}
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.o.Out, "%6.1fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) violation(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
	w.say("VIOLATION: "+format, args...)
}

func (w *world) add(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

// charge notes a fault that may cost each lane of so many daemons the attempt it had claimed.
func (w *world) charge(daemons int) {
	for range daemons {
		w.add(charges)
	}
}

func (w *world) counted(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[what]
}

// undisturbed returns a function that says whether, from now until it is called, no other fault than the caller's was
// there.
func (w *world) undisturbed() func() bool {
	alone := w.counted(begun) == w.counted(ended)+1
	before := w.counted(begun)
	return func() bool { return alone && w.counted(begun) == before }
}

// schemaBroken reports whether a daemon that starts may refuse the schema, and takes that for its reason to end.
func (w *world) schemaBroken() bool { return w.counted(broken) > 0 }
