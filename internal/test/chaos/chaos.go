package chaos

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Options say how long and how hard to try. All must be set unless they say otherwise.
type Options struct {
	// Binary is the path of the built daemon.
	Binary string
	// LogDir is where the daemons' logs go; it must exist.
	LogDir string
	// Seed decides the schedule of faults and the messages.
	Seed uint64
	// Phase says which servers there are, and which kinds of faults.
	Phase Phase
	// Duration is how long faults are started. In a round it is not looked at.
	Duration time.Duration
	// Round runs each kind of fault once, shortened, instead of a schedule.
	Round bool
	// Rate is how many messages a second are published.
	Rate int
	// Out is told what happens, line by line.
	Out io.Writer
	// Soak, if not empty, makes a long run of it: one fault a minute, and what is watched goes to Soak.md and Soak.svg.
	Soak string
	// Only, if not empty, names the kinds of faults to run.
	Only []string
}

// tally is what a kind of fault, or somebody's job, did in a run.
type tally struct {
	name, unit string
	job        bool
	times      int             // how often it was started
	hit        int             // how often it hit something
	hits       int             // how much it hit in all
	failed     int             // how often a job ended with an error, which faults explain
	last       error           // the last one
	pauses     []time.Duration // from a fault of a database cluster to the first message that was applied after it
}

// tallies are those of all kinds and jobs that belong to the run.
func (o Options) tallies() (all []*tally) {
	for _, k := range kinds() {
		if o.wants(k) {
			all = append(all, &tally{name: k.name, unit: k.unit})
		}
	}
	for _, j := range o.Phase.jobs() {
		all = append(all, &tally{name: j.name, unit: j.unit, job: true})
	}
	return all
}

// Run makes servers, daemons and load, lets the faults loose, judges, and tells. The error says that the run could not
// be done, or that the promise was broken, or that a kind of fault has hit nothing.
func Run(ctx context.Context, o Options) (err error) {
	run := (*world).run
	if o.Phase.Name == losing {
		o.Round, o.Rate, run = true, 100, (*world).lose
	}
	w := newWorld(ctx, o)
	defer func() { err = errors.Join(err, w.close()) }()
	return must.Catch(func() {
		must.OK(must.Catch(w.make), "make the world")
		run(w)
		w.print()
		must.OK(w.verdict())
	})
}

// verdict is nil when the promise was kept and every kind of fault that was begun, and every job, hit something.
func (w *world) verdict() error {
	errs := []error{w.report.Err()}
	for _, v := range w.violations {
		errs = append(errs, errors.New(v))
	}
	for _, t := range w.tallies {
		if t.hit == 0 && (t.times > 0 || t.job) {
			errs = append(errs, fmt.Errorf("%s never hit anything: the run proves nothing about it", t.name), t.last)
		}
	}
	return errors.Join(errs...)
}

// print writes the table of faults and the counters.
func (w *world) print() {
	say := func(format string, args ...any) { fmt.Fprintf(w.o.Out, format+"\n", args...) }
	say("\n%-26s %6s %6s %6s  %s", "fault, or somebody's job", "times", "failed", "hit", "what, in all")
	for _, t := range w.tallies { // one that has hit nothing had no turn in the time, or was left out, as a line has said
		say("%-26s %6d %6d %6d  %d %s", t.name, t.times, t.failed, t.hit, t.hits, t.unit)
		if len(t.pauses) > 0 {
			slices.Sort(t.pauses)
			say("  the first message was applied after %v", t.pauses)
		}
	}
	if n := w.strays.Load(); n > 0 {
		say("old sources that came back with transactions of their own: %d", n)
	}
	say("\nseed %d, %d RabbitMQ nodes, %d of the database; daemons, relays and the listener were started %d times",
		w.o.Seed, w.o.Phase.nodes, max(1, len(w.stack.Databases)),
		sum(w.fleet.all, func(s *slot) int { return s.started }))
	say("%+v\n%+v\ndead letters by reason: %v", w.report.Counters, w.report.Ends, w.report.DeadByReason)
}

func (w *world) run() {
	w.fleet.consuming()
	fresh := w.fleet.metric("go_goroutines")
	load, stopLoad := context.WithCancel(w.ctx)
	defer stopLoad()
	loaded := aside(func() {
		must.Side(1+clerks, func(i int) {
			if i == clerks {
				w.load.run(load)
			} else {
				w.clerk(load, i)
			}
		})
	})
	endPeople := w.startPeople()
	defer endPeople()
	strikes := must.Catch(w.strike)
	if strikes == nil {
		w.untilAllHit()
	}
	stopLoad()
	must.OK(errors.Join(strikes, must.Catch(loaded)))
	if w.load.next >= len(w.load.orders) {
		w.violation("the load ended before the faults did: all %d orders were published", w.load.next)
	}
	endPeople()
	if w.o.Phase.people {
		w.tidy()
	}
	w.soak.judge()
	w.settle()
	const slack = 40 // a connection of the pool more or less has one or two
	for i, now := range w.fleet.metric("go_goroutines") {
		if now == 0 || now > fresh[i]+slack {
			w.violation("daemon %d has %d goroutines at rest, the first one had %d", i, now, fresh[i])
		}
	}
	w.fleet.drain()
	w.judge()
}

// settle waits until nothing is left to do.
//
// It waits for RabbitMQ too: a queue that was moving what expired into another whose leader is lost sends that again
// after dead_letter_worker_publisher_confirm_timeout, three minutes unless it is set, and looks for such messages only
// as often as that.
func (w *world) settle() {
	began := time.Now()
	w.should("after the last fault", func() { w.wait(2*3*time.Minute+time.Minute, "not at rest", w.idle) })
	w.say("at rest %v after the last fault", time.Since(began).Round(time.Millisecond))
}

// judge asks the oracle, after all daemons have ended.
func (w *world) judge() {
	w.should("after the daemons have ended", w.quiet)
	w.agree()
	// A killed or frozen process costs each message that its lanes had claimed one attempt. A message that several faults
	// hit pays for each; all together pay for no more than there were.
	w.check(maxAttempts - 1)
	if spent, charged := w.report.AttemptsSpent, int(w.charged.Load()); spent > charged*lanes*claimAtOnce {
		w.violation("%d attempts were spent, but only %d faults could cost %d for each of %d lanes", spent, charged,
			claimAtOnce, lanes)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'unknown-%' AND consumer_status <> 3"); n > 0 {
		w.violation("%d messages of unknown orders are not dead", n)
	}
}

// check asks the oracle, which asks the first node of RabbitMQ: one that was in the minority is away until it has seen
// that it is not any more.
func (w *world) check(attempts int) {
	must.OK(w.stack.RabbitMQ.Await())
	allowed := oracle.Allowance{Attempts: attempts}
	w.report = must.Get(w.oracle.Check(w.ctx, w.before, w.load.ledger, allowed))
}

// Kinds are the names of all kinds of faults.
func Kinds() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}

const (
	queue       = "stock.rollback" // the main queue
	outboxTable = "rollbackd_outbox"

	database = "shop"
	user     = "rollbackd"          // of the daemons, so that its rights can be revoked
	account  = "'" + user + "'@'%'" // in SQL
	skus     = 200
	diskSize = 8 << 30 // bytes: room for a run of an hour; what is free costs nothing

	// grant gives the daemons the rights on a table that the documentation asks for. Those on a table can be revoked at
	// once; those on a whole database stay with the connections there are.
	grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO " + account
)

var (
	written = []string{"stock", "stock_reservation", "consumer_log", outboxTable} // by a message that is applied
	// tables are what the daemons write.
	tables = append(slices.Clone(written), "consumer_log_event", "consumer_log_act", "consumer_log_once",
		"consumer_log_minute", "rollbackd_meta")

	retryDelays = []time.Duration{200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second}
)

// world is one run: servers, links, daemons, what lies before and behind them, and load.
type world struct {
	ctx   context.Context // ends when the run is cut short
	o     Options
	plan  []planned
	stack *stack.Stack
	// links are the daemons' to one of the three servers: to all nodes of RabbitMQ, and before the proxy that leads to one
	// node of a database cluster. The relays, to those and the database, and the order service have links of their own.
	links   map[string][]*stack.TCPProxy
	db      *sql.DB // of root, not through the proxy of the daemons
	chain   chain
	environ []string
	asRoot  []string // environ with an account that may migrate
	planted int      // numbers what faults plant

	compensated int // letters that the daemons replayed by themselves; only that job counts on
	killed      int // replays; likewise

	soak    *soak
	fleet   *fleet
	load    *load
	closes  []func() error // what was started and must end, the last first
	oracle  oracle.World
	before  oracle.Stock
	report  *oracle.Report // the last one
	targets map[string]*sync.Mutex
	start   time.Time

	charged      atomic.Int64 // daemons whose lanes a fault may have cost the attempt they had claimed
	begun, ended atomic.Int64 // faults
	broken       atomic.Bool  // a fault broke the schema: a daemon that starts may refuse it
	strays       atomic.Int64 // old sources that came back with transactions of their own

	mu         sync.Mutex
	tallies    []*tally // guarded by mu, as all below
	violations []string // what was wrong besides the oracle's findings
}

func newWorld(ctx context.Context, o Options) *world {
	w := &world{ctx: ctx, o: o, plan: o.schedule(), start: time.Now(), tallies: o.tallies(),
		targets: map[string]*sync.Mutex{}, links: map[string][]*stack.TCPProxy{}}
	w.soak = &soak{w: w, looked: w.start}
	for _, target := range everything {
		w.targets[target] = new(sync.Mutex)
	}
	return w
}

// make starts servers and daemons, and what lies between.
func (w *world) make() {
	o := w.o
	w.say("seed %d: %d entries are planned for %d RabbitMQ nodes", o.Seed, len(w.plan), o.Phase.nodes)
	heartbeat := 10 // seconds, what the daemons ask for
	if o.Round {
		heartbeat = 3
	}
	servers := stack.Options{
		RabbitMQNodes: o.Phase.nodes, Log: o.Out,
		RabbitMQConfig: fmt.Sprintf("heartbeat = %d\ncluster_partition_handling = pause_minority", heartbeat),
	}
	if c := o.Phase.cluster; c != nil {
		servers.MySQLNodes, servers.Replication = databaseNodes, c.replication
	}
	isDisk := func(p planned) bool { return p.name == diskFull }
	if slices.ContainsFunc(w.plan, isDisk) {
		servers.MySQLDisk = diskSize
	}
	var err error
	w.stack, err = stack.Start(w.ctx, servers)
	if errors.Is(err, stack.ErrNoDisk) {
		w.plan = slices.DeleteFunc(w.plan, isDisk)
		w.say("%s is left out: %v", diskFull, err)
		servers.MySQLDisk = 0
		w.stack, err = stack.Start(w.ctx, servers)
	}
	must.OK(err)
	w.closes = append(w.closes, w.stack.Stop)
	w.link()
	w.openShop()
	w.migrate()
	w.fill()
	w.startFleet()
}

// link puts a proxy on each link.
func (w *world) link() {
	add := func(to string, servers ...*stack.Server) {
		for _, server := range servers {
			l := must.Get(stack.NewProxy(server.Addr(), func(format string, args ...any) {
				w.violation("proxy: "+format, args...)
			}))
			w.links[to] = append(w.links[to], l)
			w.closes = append(w.closes, func() error { l.Close(); return nil })
		}
	}
	add(rabbitmq, w.stack.Nodes...)
	add(mysqld, w.stack.MySQL)
	add(redisd, w.stack.Redis)
	add(outbox, append(slices.Clone(w.stack.Nodes), w.stack.MySQL)...)
	add(orders, w.stack.MySQL)
}

// openShop makes the database, the daemons' account and their settings.
func (w *world) openShop() {
	root := must.Get(mysql.ParseDSN(w.stack.MySQL.URL()))
	w.db = stack.OpenMySQL(root.Clone())
	w.exec("CREATE DATABASE "+database, "CREATE USER "+account+" IDENTIFIED BY '"+user+"'",
		"GRANT SELECT ON "+database+".* TO "+account)
	must.OK(w.db.Close())
	root.DBName = database
	own := root.Clone()
	root.Timeout, root.ReadTimeout = 5*time.Second, 3*time.Minute // frozen, or asked by the oracle of an hour
	if c := w.o.Phase.cluster; c != nil {
		root.Params = c.causal // what is read is what the cluster has committed; the daemons see to it themselves
	}
	w.db = stack.OpenMySQL(root)
	w.closes = append(w.closes, w.db.Close)

	var urls, direct []string
	for i, node := range w.stack.Nodes {
		urls, direct = append(urls, w.links[rabbitmq][i].Through(node.URL())), append(direct, node.URL())
	}
	asRoot, served := own.FormatDSN(), own.Clone()
	own.User, own.Passwd, own.Addr = user, user, w.links[mysqld][0].Addr
	w.environ = []string{
		"ROLLBACKD_AMQP_URL=" + strings.Join(urls, ","), "ROLLBACKD_MYSQL_DSN=" + own.FormatDSN(),
		"ROLLBACKD_REDIS_URL=" + w.links[redisd][0].Through(w.stack.Redis.URL()),
		"ROLLBACKD_HTTP_ADDR=127.0.0.1:0", "ROLLBACKD_LOG_FORMAT=json", "ROLLBACKD_LANES=" + strconv.Itoa(lanes),
		"ROLLBACKD_MAX_ATTEMPTS=" + strconv.Itoa(maxAttempts), "ROLLBACKD_RETRY_DELAYS=200ms,500ms,1s,2s",
		"ROLLBACKD_HANDLER_TIMEOUT=" + handlerTime.String(), "ROLLBACKD_LEASE=15s", "ROLLBACKD_BATCH_SIZE=100",
		"ROLLBACKD_DRAIN_TIMEOUT=" + drainTimeout.String(), "ROLLBACKD_BRAKE_PAUSE=5s", "ROLLBACKD_EMIT=" + event,
		"ROLLBACKD_LOCK_TTL=2s", "ROLLBACKD_DONE_TTL=10s",
	}
	w.asRoot = append(slices.Clone(w.environ), "ROLLBACKD_MYSQL_DSN="+asRoot) // the later one counts
	w.oracle = oracle.World{
		DB: w.db, LogTable: "consumer_log", Group: "stock-rollback",
		KeyFrom: "header:x-message-key,property:message_id,body:sha256",
		AMQPURL: direct[0], Queue: queue, Delays: retryDelays, Unacked: func(queue string) (int, error) {
			return w.total("messages_unacknowledged", fmt.Sprintf(`Name =:= <<"%s">>`, queue))
		},
		Chain: &oracle.Chain{Orders: "orders", Outbox: outboxTable, Told: listener + ".told"},
	}
	w.openChain(served)
	w.load = &load{w: w, urls: direct, route: shop.Route{Exchange: "stock", Key: "stock.rollback"}}
	w.load.ledger = must.Get(w.oracle.NewLedger())
}

// migrate makes tables and topology with the binary's own command, as root.
func (w *world) migrate() {
	w.migrates(w.asRoot)
	for _, table := range tables {
		w.exec(strings.ReplaceAll(grant, "{}", table))
	}
	w.migrates(w.chain.asListener)
	must.OK(oracle.Audit(w.ctx, w.db))
}

func (w *world) migrates(environ []string) {
	must.Get(program.Run(context.WithoutCancel(w.ctx), w.o.Binary, environ, "migrate"))
}

// close stops everything that make has started.
func (w *world) close() error {
	var errs []error
	for _, end := range slices.Backward(w.closes) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// pass lets time pass, until the run is cut short.
func (w *world) pass(d time.Duration) error { return wait.For(w.ctx, d) }

// until asks every 50 ms until the answer is yes, at most for d.
func (w *world) until(d time.Duration, yes func() bool) bool {
	return poll.During(w.ctx, d, 50*time.Millisecond, yes)
}

// wait waits until nothing is wrong, or the run is cut short.
func (w *world) wait(d time.Duration, what string, wrong func() error) {
	var last error
	if !w.until(d, func() bool { last = wrong(); return last == nil }) && w.ctx.Err() == nil {
		must.OK(last, what, " after ", d)
	}
}

// exec runs statements as root, also when the run is cut short: what was begun is ended too.
func (w *world) exec(statements ...string) {
	must.Exec(context.WithoutCancel(w.ctx), w.db, statements...)
}

// ask asks for one value, for a second at most.
func (w *world) ask(into any, query string, args ...any) error {
	ctx, cancel := context.WithTimeout(w.ctx, time.Second)
	defer cancel()
	return w.db.QueryRowContext(ctx, query, args...).Scan(into)
}

// number asks for a number.
func (w *world) number(query string) int { return must.Value[int](w.ctx, w.db, query) }

// applied is the number of success rows, 0 while the database cannot be asked.
func (w *world) applied() (n int) {
	const all = "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1"
	if err := w.db.QueryRowContext(w.ctx, all).Scan(&n); err != nil {
		w.say("cannot count what is applied: %v", err) // a database that another fault has hit
	}
	return n
}

const openRows = "SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (0, 2)"

func (w *world) noOpenRow() error { return w.nothing(openRows, "rows are open") }

// nothing is nil when a query counts nothing.
func (w *world) nothing(query, what string) error {
	var n int
	err := w.ask(&n, query)
	return none(n, err, what)
}

// eval runs an Erlang expression in the first node of RabbitMQ that answers, also when the run is cut short.
func (w *world) eval(expression string) (text string, err error) {
	var errs []error
	for _, node := range w.stack.Nodes {
		if text, err = ask(context.WithoutCancel(w.ctx), node, expression); err == nil {
			return text, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// lookUp begins an Erlang expression about a queue, which is Q then.
func lookUp(queue string) string {
	return fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>))`, queue)
}

// erlang is an expression whose value is a number.
func (w *world) erlang(expression string) (int, error) {
	text, err := w.eval(expression)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// inHandsOf counts the deliveries that a process holds; 0 when the broker is down, too, and nobody can tell.
func (w *world) inHandsOf(pid int) int {
	n, err := w.erlang(fmt.Sprintf(`Own = [P || [{pid, P}, {client_properties, Ps}] <-
			rabbit_networking:connection_info_all([pid, client_properties]),
		{<<"connection_name">>, _, Name} <- Ps, lists:suffix("/%d", binary_to_list(Name))],
		lists:sum([N || [{connection, C}, {messages_unacknowledged, N}] <- rabbit_channel:info_all([connection,
			messages_unacknowledged]), lists:member(C, Own)])`, pid))
	if err != nil {
		w.say("no node says what a daemon holds")
	}
	return n
}

// total adds an item up for all queues of these names. Only the node that leads a queue knows its counts, so all are
// asked; RabbitMQ updates them every five seconds.
func (w *world) total(item, names string) (int, error) {
	return w.erlang(fmt.Sprintf(`lists:sum([lists:max([0 | [N || Node <- [node() | nodes()],
		[{_, N}] <- [rpc:call(Node, rabbit_amqqueue, info, [Q, [%s]], 3000)],
			is_integer(N)]]) || Q <- rabbit_amqqueue:list(<<"/">>),
		begin {resource, _, _, Name} = amqqueue:get_name(Q), %s end])`, item, names))
}

// none is nil when a count is 0.
func none(n int, err error, what string) error {
	if err == nil && n > 0 {
		err = fmt.Errorf("%d %s", n, what)
	}
	return err
}

// idle is nil when all queues but the dead letters' are empty, nobody holds a delivery, and no row is open.
func (w *world) idle() error {
	n, err := w.total("messages", fmt.Sprintf(`Name =/= <<"%s">>`, rabbit.DeadQueue(queue)))
	return errors.Join(none(n, err, "messages are in the main, retry and backstop queues"), w.noOpenRow(),
		w.nothing("SELECT (SELECT COUNT(*) FROM rollbackd_outbox) + (SELECT COUNT(*) FROM "+listener+".consumer_log WHERE "+
			"consumer_status IN (0, 2))", "messages are in the outbox, or open at the listener"))
}

// quiet waits until nothing is unacked in any queue.
func (w *world) quiet() {
	w.wait(30*time.Second, "deliveries are in somebody's hands", func() error {
		n, err := w.total("messages_unacknowledged", "true")
		return none(n, err, "deliveries are unacked")
	})
}

// depth is how many messages wait in a queue and are in nobody's hands.
func (w *world) depth(queue string) (int, error) {
	conn, err := rabbit.Dial(w.ctx, rabbit.Config{URLs: w.load.urls, Name: "chaos depth"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ready, _, err := conn.Depth(w.ctx, queue)
	return ready, err
}

func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.o.Out, "%6.1fs  %s\n", time.Since(w.start).Seconds(), fmt.Sprintf(format, args...))
}

func (w *world) violation(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
	w.say("VIOLATION: "+format, args...)
}

// should does a step; what stops it is a violation.
func (w *world) should(when string, step func()) {
	if err := must.Catch(step); err != nil {
		w.violation("%s: %v", when, err)
	}
}

func (w *world) tally(name string) *tally {
	return w.tallies[slices.IndexFunc(w.tallies, func(t *tally) bool { return t.name == name })]
}

// count counts a fault or a job.
func (w *world) count(name string, hits int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.tally(name)
	t.times++
	t.hits += hits
	if hits > 0 {
		t.hit++
	}
	if err != nil {
		t.failed++
		t.last = err
	}
}

// undisturbed returns a function that says whether, from now until it is called, no other fault than the caller's was
// there.
func (w *world) undisturbed() func() bool {
	before := w.begun.Load()
	alone := before == w.ended.Load()+1
	return func() bool { return alone && w.begun.Load() == before }
}
