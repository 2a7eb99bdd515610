package daemon_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/store"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// bigEnv asks for the sizes that the issue names; without it the tests are as large as fits into an ordinary run.
const bigEnv = "ROLLBACKD_TEST_BIG"

func sized(ordinary, big int) int {
	if os.Getenv(bigEnv) != "" {
		return big
	}
	return ordinary
}

// world is a shop with a daemon's settings: a fresh database, fresh queues, and a ledger of what was published.
type world struct {
	t      *testing.T
	broker *stack.Broker
	db     *sql.DB // of the test itself
	env    map[string]string
	oracle oracle.World
	ledger *oracle.Ledger
	before oracle.Stock
	route  shop.Route
	rng    *rand.Rand
	logs   *program.Log

	lockServers []*stack.Server // of the lock, if the test has its own
	lockSet     *stack.RedisSet // what they are together, if one of them takes the place of another
}

const skus = 100

// newWorld makes a migrated world, whose test runs beside others; the pairs change or add settings, names without their
// prefix.
func newWorld(t *testing.T, pairs ...string) *world {
	t.Helper()
	t.Parallel()
	return aloneWorld(t, pairs...)
}

// aloneWorld is newWorld for a test that does not run beside others.
func aloneWorld(t *testing.T, pairs ...string) *world {
	t.Helper()
	w := worldOf(t, pairs...)
	w.migrate()
	return w
}

// emptyWorld is newWorld with a database without tables and a broker without queues.
func emptyWorld(t *testing.T, pairs ...string) *world {
	t.Helper()
	t.Parallel()
	return worldOf(t, pairs...)
}

func worldOf(t *testing.T, pairs ...string) *world {
	t.Helper()
	w := &world{t: t, broker: stack.AMQP(t), logs: &program.Log{}}
	w.route = shop.Route{Exchange: w.broker.Name("stock"), Key: "stock.rollback"}
	w.env = map[string]string{"AMQP_URL": w.broker.URL, "REDIS_URL": stack.Redis(t), "EXCHANGE": w.route.Exchange,
		"QUEUE": w.broker.Name("stock.rollback"), "HTTP_ADDR": "127.0.0.1:0", "LOG_FORMAT": "json"}
	w.set(pairs...)
	if w.env["MYSQL_DSN"] == "" {
		w.env["MYSQL_DSN"] = stack.MySQL(t)
	}
	w.db = w.store(dedup.OpenOptions{}).Pool
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w.rng = rand.New(rand.NewPCG(seed, 1))

	cfg := w.config()
	w.oracle = oracle.World{DB: w.db, LogTable: cfg.LogTable, Group: cfg.Group, KeyFrom: cfg.KeyFrom,
		AMQPURL: w.broker.URL, Queue: cfg.Queue, Delays: cfg.RetryDelays,
		Unacked: func(queue string) (int, error) { return w.broker.Unacked(queue), nil }}
	w.ledger = require.Get(w.oracle.NewLedger())(t)
	w.broker.Track(cfg.TopologyConfig().Queues()...)
	w.broker.TrackExchanges(cfg.Exchange)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last lines of the daemons' log:\n%s", w.logs.Tail(60))
		}
	})
	return w
}

// set changes settings: name, value, name, value …
func (w *world) set(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		w.env[pairs[i]] = pairs[i+1]
	}
}

// environ is the environment of a daemon.
func (w *world) environ() []string {
	var env []string
	for k, v := range w.env {
		env = append(env, config.Prefix+k+"="+v)
	}
	return env
}

func (w *world) config() config.Config {
	w.t.Helper()
	cfg, warnings, err := config.Load(w.environ())
	require.OK(w.t, err)
	for _, warning := range warnings {
		w.t.Log(warning)
	}
	return cfg
}

// migrate makes tables, topology and the audit of releases.
func (w *world) migrate() {
	w.t.Helper()
	cfg := w.config()
	tables := cfg.Migrations()
	if cfg.Handler != config.HandlerStock { // all of them work on its tables
		tables.Extra = append(tables.Extra, dedup.MigrationSet{Name: stock.MigrationSet, Files: stock.Migrations()})
	}
	names := tables.Table
	for _, set := range tables.Extra {
		names += " " + set.Name
	}
	stack.Tables(w.t, w.env["MYSQL_DSN"], names, func() {
		require.OK(w.t, dedup.Migrate(w.t.Context(), w.store(dedup.OpenOptions{}).DB, tables))
	})
	w.declare(cfg)
	require.OK(w.t, oracle.Audit(w.t.Context(), w.db))
}

func (w *world) declare(cfg config.Config) {
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"}))(w.t)
	defer conn.Close()
	require.Get(rabbit.Declare(w.t.Context(), conn, cfg.TopologyConfig()))(w.t)
}

// open fills the shop: n orders have reserved what they want.
func (w *world) open(n int) []shop.Order {
	w.t.Helper()
	orders := shop.Orders(w.rng, "order", n, skus)
	require.OK(w.t, shop.Stock(w.t.Context(), w.db, skus, 10_000_000))
	require.OK(w.t, shop.SeedReserved(w.t.Context(), w.db, orders))
	w.remember()
	return orders
}

// remember takes the present stock as what there was at first.
func (w *world) remember() {
	w.t.Helper()
	w.before = require.Get(oracle.ReadStock(w.t.Context(), w.db))(w.t)
}

// publish publishes confirmed and writes it down.
func (w *world) publish(sent ...oracle.Sent) {
	w.t.Helper()
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(context.WithoutCancel(w.t.Context())) }()
	require.OK(w.t, shop.Publish(w.t.Context(), p, w.ledger, sent, nil))
}

// mixed publishes in an order that chance makes.
func (w *world) mixed(sent []oracle.Sent) {
	w.t.Helper()
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	w.publish(sent...)
}

// judge asks the oracle and prints its counters. No daemon may run any more.
func (w *world) judge(allow oracle.Allowance) *oracle.Report {
	w.t.Helper()
	report := require.Get(w.oracle.Check(w.t.Context(), w.before, w.ledger, allow))(w.t)
	w.t.Log(report.Counters)
	assert.OK(w.t, report.Err())
	return report
}

// exec runs a statement.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, query, args...)
}

// hold runs statements on a connection of its own, and letGo others there: a lock, and its end.
func (w *world) hold(end []string, statements ...string) (letGo func()) {
	w.t.Helper()
	conn := require.Get(w.db.Conn(w.t.Context()))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	run := func(statements ...string) {
		w.t.Helper()
		for _, text := range statements {
			require.Get(conn.ExecContext(context.WithoutCancel(w.t.Context()), text))(w.t)
		}
	}
	run("SET SESSION wait_timeout = 3600")
	run(statements...)
	return func() { w.t.Helper(); run(end...) }
}

// store is the log and the letters as a command has them, until the test ends.
func (w *world) store(o dedup.OpenOptions) *store.Store {
	w.t.Helper()
	s := require.Get(store.Open(w.t.Context(), store.Queue{Config: w.config().Config}, "test", o))(w.t)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

// count asks the database for one number.
func (w *world) count(query string, args ...any) int {
	w.t.Helper()
	return stack.Number(w.t, w.db, query, args...)
}

// waiting counts the rows of the outbox.
func (w *world) waiting() int {
	w.t.Helper()
	return w.count("SELECT COUNT(*) FROM rollbackd_outbox")
}

// rows counts the rows of the log in a status.
func (w *world) rows(status dedup.Status) int {
	w.t.Helper()
	return w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ?", int(status))
}

// ended waits until n rows have ended, as success or dead, and no copy is left in the queues.
func (w *world) ended(n int) {
	w.t.Helper()
	cfg := w.config()
	live := slices.DeleteFunc(cfg.TopologyConfig().Queues(), func(q string) bool {
		return q == rabbit.DeadQueue(cfg.Queue)
	})
	w.eventually(fmt.Sprintf("%d rows ended, no copy left", n), func() bool {
		return w.rows(dedup.Success)+w.rows(dedup.Dead) >= n && w.broker.Quiet(live...)
	})
}

// eventually waits until yes, on a busy machine too.
func (w *world) eventually(what string, yes func() bool) {
	w.t.Helper()
	w.within(3*time.Minute, what, yes)
}

// within is eventually for what has to be so by then.
func (w *world) within(within time.Duration, what string, yes func() bool) {
	w.t.Helper()
	if !poll.Within(within, yes) {
		w.t.Fatalf("still not after %v: %s; rows: %d success, %d dead, %d failed, %d processing", within, what,
			w.rows(dedup.Success), w.rows(dedup.Dead), w.rows(dedup.Failed), w.rows(dedup.Processing))
	}
}

// start starts the real binary as a daemon; the test's end kills it if it still runs.
func (w *world) start() *program.Process {
	w.t.Helper()
	path := program.Shared(w.t)
	return w.startProcess(program.Options{Path: path, Args: []string{"run"}, Env: w.environ(), Log: w.logs})
}

// types runs a command of the binary to its end, as somebody who works here.
func (w *world) types(args ...string) (output string, err error) {
	return program.Run(w.t.Context(), program.Shared(w.t), append(os.Environ(), w.environ()...), args...)
}

func (w *world) startProcess(o program.Options) *program.Process {
	w.t.Helper()
	p := require.Get(program.Start(o))(w.t)
	w.t.Cleanup(func() { assert.OK(w.t, p.Kill()) })
	return p
}

// child starts this test binary as a daemon that a variable of the environment makes die; see TestMain.
func (w *world) child(variable string) *program.Process {
	w.t.Helper()
	executable := require.Get(os.Executable())(w.t)
	return w.startProcess(program.Options{Path: executable, Env: append(w.environ(), variable), Log: w.logs})
}

// kill ends daemons with SIGKILL.
func (w *world) kill(all ...*program.Process) {
	w.t.Helper()
	for _, p := range all {
		require.OK(w.t, p.Kill())
	}
}

// exits waits until a process has ended, with this code.
func (w *world) exits(p *program.Process, want int, within time.Duration) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), within)
	defer cancel()
	if code, err := p.Wait(ctx); err != nil || code != want {
		w.t.Fatalf("the process ended with %d (%v), want %d\n%s", code, err, want, w.logs.Tail(20))
	}
}

// metrics are what a daemon counts.
func (w *world) metrics(p *program.Process) program.Metrics {
	w.t.Helper()
	return require.Get(p.Metrics(w.t.Context()))(w.t)
}

// settled are a daemon's metrics when so many deliveries are counted, which is a moment after their ends.
func (w *world) settled(p *program.Process, deliveries int) (m program.Metrics) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d deliveries are counted", deliveries), func() bool {
		m = w.metrics(p)
		return m.Settled() >= deliveries
	})
	return m
}

// stop drains daemons, which must then exit with 0.
func (w *world) stop(all ...*program.Process) {
	w.t.Helper()
	for _, p := range all {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		code, err := p.Stop(ctx)
		assert.That(w.t, err == nil && code == 0, "the drained daemon exited with %d (%v), want 0", code, err)
		cancel()
	}
}

// rest drains daemons, and asks the oracle.
func (w *world) rest(all ...*program.Process) *oracle.Report {
	w.t.Helper()
	w.stop(all...)
	return w.judge(oracle.Allowance{})
}

// finish lets a daemon work until so many are applied and so many dead, and asks the oracle.
func (w *world) finish(applied, dead int, allow oracle.Allowance) *oracle.Report {
	w.t.Helper()
	daemon := w.start()
	w.ended(applied + dead)
	w.stop(daemon)
	return w.judged(applied, dead, allow)
}

// judged is judge, and says how many are applied and dead in the end.
func (w *world) judged(applied, dead int, allow oracle.Allowance) *oracle.Report {
	w.t.Helper()
	report := w.judge(allow)
	assert.That(w.t, report.Applied == applied && report.DeadLettered == dead, "%d applied and %d dead, want %d and %d",
		report.Applied, report.DeadLettered, applied, dead)
	return report
}

// deadOrders is a world with tokens and daemons, in which n orders' rollbacks are letters, because reservations were
// missing until then.
func deadOrders(t *testing.T, n, daemons int, pairs ...string) (w *world, orders []shop.Order,
	fleet []*program.Process) {
	t.Helper()
	w = newWorld(t, append([]string{"MAX_ATTEMPTS", "1", "MAX_DEAD_RATE", "off", "LANES", "1", "ADMIN_TOKENS_FILE",
		twoTokens(t)}, pairs...)...)
	orders = w.open(n)
	w.exec("UPDATE stock_reservation SET order_sn = CONCAT('x-', order_sn)")
	for range daemons {
		fleet = append(fleet, w.start())
	}
	w.publish(w.route.Rollbacks(orders)...)
	w.eventually("all are dead", func() bool { return w.rows(dedup.Dead) == n })
	w.exec("UPDATE stock_reservation SET order_sn = SUBSTRING(order_sn, 3)")
	return w, orders, fleet
}

func (w *world) signal(p *program.Process, s syscall.Signal) {
	w.t.Helper()
	require.OK(w.t, p.Signal(s))
}

// times is how files of testdata say that a text is repeated.
var times = regexp.MustCompile(`\{([^{}]+) times (\d+)\}`)

func repeated(text string) string {
	return times.ReplaceAllStringFunc(text, func(s string) string {
		m := times.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		return strings.Repeat(m[1], n)
	})
}

// is compares two values.
func is[T comparable](w *world, what string, got, want T) {
	w.t.Helper()
	assert.Is(w.t, got, want, "%s", what)
}

// TestMain runs the tests, or, in a process that a test has started with childEnv set, a daemon with a handler that no
// product has.
func TestMain(m *testing.M) {
	if poison := os.Getenv(childEnv); poison != "" {
		os.Exit(runChild(daemon.Options{Handler: poisonedHandler{poison}}))
	}
	stack.Main(m, program.Remove)
}
