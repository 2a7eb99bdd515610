package consumer_test

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
)

// world is a fresh database, a fresh set of queues and a Redis, with everything an engine needs. Its handler writes one
// row per effect into a table without a unique key, so that an effect that happens twice shows.
type world struct {
	t      *testing.T
	broker *stack.Broker
	cfg    consumer.Config
	// What the engine connects to; a test may put a proxy in between before it starts one.
	amqpURL, dsn, redisURL string

	direct  string   // DSN of the test itself
	gorm    *gorm.DB // of the test itself
	db      *sql.DB  // the same
	records *dedup.Log
	handler consumer.Handler
	logs    *program.Log
	// patience is how long to wait for what must happen.
	patience time.Duration
	last     *running      // engine that was launched
	calls    tally         // of the world's handler, by key
	minute   time.Duration // how long a minute of the charts takes; 0: a minute
	answer   time.Duration // for which MySQL is waited; 0: 3 s

	mu     sync.Mutex
	reject map[string]func() error // by key; guarded by mu
	regs   []*prometheus.Registry  // of each engine started; guarded by mu
}

const (
	group = "test-group"
	tag   = "stock.rollback"
)

// servers are a test's own, to be killed and frozen. Those that are nil are shared with other tests.
type servers struct{ rabbit, mysql, redis *stack.Server }

// newWorld is a world on shared servers, whose test runs beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldOn(t, servers{})
}

// each runs f for each case in a world of its own, all of them at once.
func each[T any](t *testing.T, cases map[string]T, f func(t *testing.T, w *world, one T)) {
	t.Helper()
	t.Parallel()
	for name, one := range cases {
		t.Run(name, func(t *testing.T) { f(t, newWorld(t), one) })
	}
}

// named are cases that say themselves what they are.
func named[T any](cases ...T) map[string]T {
	all := map[string]T{}
	for _, one := range cases {
		all[fmt.Sprint(one)] = one
	}
	return all
}

func newWorldOn(t *testing.T, own servers) *world {
	t.Helper()
	w := &world{t: t, reject: map[string]func() error{}, logs: &program.Log{}, patience: time.Minute}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the engines:\n%s", w.logs)
		}
	})
	if own.rabbit != nil {
		w.broker = own.rabbit.Broker(t)
	} else {
		w.broker = stack.AMQP(t)
	}
	if own.mysql != nil {
		w.dsn = own.mysql.Database(t)
	} else {
		w.dsn = stack.MySQL(t)
	}
	if own.redis != nil {
		w.redisURL = own.redis.URL()
	} else {
		w.redisURL = stack.Redis(t)
	}
	w.handler = consumer.HandlerFunc(w.handle)
	w.amqpURL = w.broker.URL
	w.cfg = consumer.Config{
		Group: group, Exchange: w.broker.Name("stock"), Queue: w.broker.Name("stock.rollback"), RoutingKeys: []string{tag},
		KeyFrom:     "header:x-message-key,property:message_id,body:sha256",
		MaxAttempts: 3, RetryDelays: []time.Duration{100 * time.Millisecond, 300 * time.Millisecond},
		Lanes: 2, BatchSize: 50, BatchLinger: 5 * time.Millisecond, Prefetch: 100,
		// time for handlers on a busy machine; a test that waits for an end of these is hasty
		Lease: 15 * time.Second, HandlerTimeout: 10 * time.Second, DrainTimeout: 10 * time.Second,
		LockTTL: time.Second, DoneTTL: time.Minute,
		MaxDead: consumer.Off, WithoutKeeper: true, // each test that wants them says so
	}
	w.broker.Track(w.topology().Queues()...)
	w.broker.TrackExchanges(w.cfg.Exchange)
	w.direct = w.dsn
	migrate := func() {
		migrating := w.open(stack.ForMigrations(t, w.direct))
		require.OK(t, dedup.Migrate(t.Context(), migrating, dedup.MigrateOptions{Table: "consumer_log"}))
	}
	if own.mysql != nil {
		migrate() // a node of a cluster, for one, where nothing else migrates
	} else {
		stack.Tables(t, w.direct, "log", migrate)
	}
	w.gorm = w.open(w.direct)
	w.db = require.Get(w.gorm.DB())(t)
	w.records = w.log(w.gorm)
	w.exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL, body MEDIUMBLOB NOT NULL) ENGINE=InnoDB")
	return w
}

// hasty makes times short that the test waits for.
func (w *world) hasty() { w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second }

func (w *world) topology() rabbit.TopologyConfig { return topologyOf(w.cfg) }

func topologyOf(cfg consumer.Config) rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: cfg.Exchange, Queue: cfg.Queue, RoutingKeys: cfg.RoutingKeys, Delays: cfg.LogOptions().Delays,
	}
}

func (w *world) open(dsn string) *gorm.DB {
	w.t.Helper()
	db := require.First(dedup.Open(w.t.Context(), dsn, dedup.OpenOptions{
		LockWait: time.Second, ReadTimeout: cmp.Or(w.answer, 3*time.Second), WriteTimeout: 3 * time.Second,
	}))(w.t)
	pool := require.Get(db.DB())(w.t)
	w.t.Cleanup(func() { _ = pool.Close() })
	return db
}

func (w *world) log(db *gorm.DB) *dedup.Log {
	w.t.Helper()
	return require.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: w.cfg.Lease, Delays: w.cfg.RetryDelays, MaxAttempts: w.cfg.MaxAttempts,
	}))(w.t)
}

// running is an engine that a test started.
type running struct {
	*consumer.Consumer
	process
}

// process is something whose Run is on its way.
type process struct {
	stop context.CancelFunc
	done chan error // closed once Run has returned and its error is taken
}

// run runs something, until it is drained, or the test ends.
func (w *world) run(c interface {
	Run(ctx context.Context) error
}) process {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	p := process{stop, make(chan error, 1)}
	go func() { p.done <- c.Run(ctx) }() // joined by drained
	w.t.Cleanup(func() { _ = p.drained() })
	return p
}

// start starts an engine; the test's end stops it, and it must then have drained.
func (w *world) start() *running {
	w.t.Helper()
	r := w.launch()
	w.t.Cleanup(func() { is(w, "Run", r.drained(), nil) })
	return r
}

// launch starts an engine that the test itself must end with drained.
func (w *world) launch() *running {
	w.t.Helper()
	db := w.open(w.dsn)
	var client redis.UniversalClient
	if w.redisURL != "" {
		client = require.Get(lock.OpenRedis(w.redisURL, lock.RedisOptions{}))(w.t)
		w.t.Cleanup(func() { _ = client.Close() })
	}
	reg := prometheus.NewRegistry()
	cfg := w.cfg
	cfg.AMQPURLs, cfg.Registerer = []string{w.amqpURL}, reg
	cfg.Logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := require.Get(consumer.New(cfg, w.handler, consumer.Options{DB: db, Redis: client}))(w.t)
	if w.minute > 0 {
		c.MinutesTake(w.minute)
	}
	w.mu.Lock()
	w.regs = append(w.regs, reg)
	w.mu.Unlock()
	w.last = &running{c, w.run(c)}
	return w.last
}

// drained stops it and returns what Run returned; nil when it was asked before.
func (p process) drained() error {
	p.stop()
	err, first := <-p.done
	if first {
		close(p.done)
	}
	return err
}

// ends waits until it has ended by itself, and returns what Run returned.
func (p process) ends(w *world) error {
	w.t.Helper()
	defer p.drained()
	err := poll.Receive(w.t, "Run has ended", p.done)
	close(p.done)
	return err
}

// startWith starts an engine when these messages wait for it.
func (w *world) startWith(keys ...string) *running {
	w.t.Helper()
	w.publish("{}", keys...)
	return w.start()
}

// blaming blames those whom guilty has an error of.
func blaming(msgs []consumer.Message, guilty func(consumer.Message) error) error {
	var blamed []consumer.BlamedMessage
	for i, m := range msgs {
		if err := guilty(m); err != nil {
			blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
		}
	}
	return consumer.Blame(blamed...)
}

// batch makes the handler write the effects of all, and then do this.
func (w *world) batch(do func(tx *gorm.DB, msgs []consumer.Message) error) {
	w.handler = handling(func(tx *gorm.DB, msgs []consumer.Message) error {
		if err := insertAll(tx, msgs); err != nil {
			return err
		}
		return do(tx, msgs)
	})
}

// doing makes the handler write each effect, and then do this; an error is the message's own.
func (w *world) doing(do func(tx *gorm.DB, m consumer.Message) error) {
	w.handler = by(false, func(tx *gorm.DB, m consumer.Message) error {
		if err := insert(tx, m.Key); err != nil {
			return err
		}
		return do(tx, m)
	})
}

// writes writes the effect of a message, and then says what is wrong with it.
func (w *world) writes(tx *gorm.DB, m consumer.Message) error {
	return errors.Join(insert(tx, m.Key), w.judge(m))
}

// handle is the world's handler: what is rejected has no effect.
func (w *world) handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	err := blaming(msgs, w.judge)
	for _, m := range msgs {
		w.calls.add(m.Key)
		if err == nil {
			err = tx.WithContext(ctx).Exec("INSERT INTO effect (k, body) VALUES (?, ?)", m.Key, string(m.Body)).Error
		}
	}
	return err
}

// judge says what is wrong with a message, if it is rejected.
func (w *world) judge(m consumer.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reject := w.reject[m.Key]; reject != nil {
		return reject()
	}
	return nil
}

func (w *world) rejecting(key string, reject func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reject[key] = reject
}

// failing makes the handler blame these messages, each time.
func (w *world) failing(keys ...string) {
	for _, k := range keys {
		w.rejecting(k, func() error { return errors.New("shelf is locked") })
	}
}

// flaky makes the handler blame each of them in its first call, whether its transaction is shared or not.
func (w *world) flaky(keys ...string) {
	for _, k := range keys {
		w.rejecting(k, func() error {
			delete(w.reject, k) // who asks has locked it
			return errors.New("try again")
		})
	}
}

// hopeless makes the handler blame them for good; rejecting nil mends one.
func (w *world) hopeless(keys ...string) {
	for _, k := range keys {
		w.rejecting(k, func() error { return consumer.Permanent(errors.New("already shipped")) })
	}
}

// publish declares the topology and publishes one message per key, all with the same body.
func (w *world) publish(body string, keys ...string) {
	w.t.Helper()
	w.declare()
	w.publishTo(tag, body, keys...)
}

// publishTo publishes with another routing key, to queues that are there.
func (w *world) publishTo(routingKey, body string, keys ...string) {
	w.t.Helper()
	var msgs []rabbit.Message
	for _, key := range keys {
		msgs = append(msgs, message(key, body))
	}
	w.send(routingKey, msgs)
}

func (w *world) publishMessages(msgs ...rabbit.Message) {
	w.t.Helper()
	w.declare()
	w.send(tag, msgs)
}

func (w *world) send(routingKey string, msgs []rabbit.Message) {
	w.t.Helper()
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(w.t.Context()) }()
	batch := make([]rabbit.Publishing, len(msgs))
	for i, m := range msgs {
		batch[i] = rabbit.Publishing{Exchange: w.cfg.Exchange, Key: routingKey, Message: m}
	}
	require.OK(w.t, p.Publish(w.t.Context(), batch)...)
}

func (w *world) declare() {
	w.t.Helper()
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"}))(w.t)
	defer func() { _ = conn.Close() }()
	require.Get(rabbit.Declare(w.t.Context(), conn, w.topology()))(w.t)
}

// exec runs a statement, also for a hook or a handler, whose goroutine goes on whatever comes of it.
func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.db.ExecContext(context.WithoutCancel(w.t.Context()), query, args...)
	assert.OK(w.t, err, query+":")
}

// rows makes rows that were moved an hour ago, and know no body.
func (w *world) rows(status dedup.Status, attempts int, owner string, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		w.exec(`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, owner,
			consumer_timestamp, created_at)
			VALUES (?, ?, ?, ?, ?, NULLIF(?, ''), UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`,
			group, tag, k, status, attempts, owner)
	}
}

// eventually waits until yes, for as long as there is patience.
func (w *world) eventually(what string, yes func() bool) {
	w.t.Helper()
	if !poll.Within(w.patience, yes) {
		w.t.Fatalf("still not after %v: %s\neffects %v, outcomes %v\n%s", w.patience, what, w.effects(), w.outcomes(), w.logs)
	}
}

// settled waits until so many deliveries have ended in all.
func (w *world) settled(deliveries int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d deliveries settled", deliveries), func() bool {
		return w.sum("rollbackd_deliveries_total") >= deliveries
	})
}

// want compares two maps of counts.
func (w *world) want(what string, got, want map[string]int) {
	w.t.Helper()
	assert.That(w.t, maps.Equal(got, want), "%s: %v, want %v", what, got, want)
}

// is compares two values.
func is[T comparable](w *world, what string, got, want T) {
	w.t.Helper()
	assert.Is(w.t, got, want, "%s", what)
}

// applied waits until the rows of these messages say success; then they are the ones that have an effect, once each.
func (w *world) applied(keys ...string) {
	w.t.Helper()
	w.ended(dedup.Success, keys...)
	w.want("effects", w.effects(), once(keys...))
}

// died waits until these messages are dead and nothing is left to do; then they are the letters, once each.
func (w *world) died(keys ...string) {
	w.t.Helper()
	w.ended(dedup.Dead, keys...)
	w.quiet()
	w.want("letters", w.letters(), once(keys...))
}

// rests is died of some, and applied of all others.
func (w *world) rests(applied []string, dead ...string) {
	w.t.Helper()
	w.died(dead...)
	w.applied(applied...)
}

// judged starts an engine that gets all in one batch, and waits until the deliveries have ended like this: some are
// dead, and the others, which it returns, are applied.
func (w *world) judged(all []string, ends map[string]int, dead ...string) (others []string) {
	w.t.Helper()
	w.oneBatch(len(all))
	w.startWith(all...)
	w.ended(dedup.Dead, dead...)
	w.end(ends)
	others = without(all, dead...)
	w.applied(others...)
	return others
}

// wanted is what a row is to say; what is zero is not asked for.
type wanted struct {
	Status            dedup.Status
	Attempts, Replays int
	Reason            dedup.Reason
	Remark, Says      string // all of it, or a part
	Alone             bool   // it runs alone
}

// wantRow compares the row of a message.
func (w *world) wantRow(key string, want wanted) {
	w.t.Helper()
	row := w.row(key)
	got := wanted{row.Status, row.Attempts, row.Replays, row.Reason, row.Remark, want.Says, row.RunsAlone()}
	all := wanted{
		cmp.Or(want.Status, got.Status), cmp.Or(want.Attempts, got.Attempts), cmp.Or(want.Replays, got.Replays),
		cmp.Or(want.Reason, got.Reason), cmp.Or(want.Remark, got.Remark), want.Says, want.Alone || got.Alone,
	}
	assert.That(w.t, got == all && strings.Contains(row.Remark, want.Says), "the row of %s: %+v, want %+v", key, got, want)
}

// wantRows compares the rows of several.
func (w *world) wantRows(want wanted, keys ...string) {
	w.t.Helper()
	for _, k := range keys {
		w.wantRow(k, want)
	}
}

// id is the name of a message.
func id(key string) dedup.Identity { return dedup.Identity{Group: group, Tag: tag, Key: key} }

// without is keys but some.
func without(keys []string, some ...string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(some, k) })
}

// logged waits until the log has this.
func (w *world) logged(text string) {
	w.t.Helper()
	w.eventually("the log says "+text, func() bool { return strings.Contains(w.logs.String(), text) })
}

// unsaid checks that the log does not have this.
func (w *world) unsaid(text string) {
	w.t.Helper()
	log := w.logs.String()
	assert.That(w.t, !strings.Contains(log, text), "the log says %s:\n%s", text, log)
}

// keys makes n keys.
func keys(prefix string, n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return slices.Clip(k)
}

// tally counts keys.
type tally struct {
	mu sync.Mutex
	n  map[string]int // guarded by mu
}

func (c *tally) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[key]++
}

func (c *tally) of() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// keysOf are the keys of messages.
func keysOf(all []rabbit.Message) (keys []string) {
	for _, m := range all {
		keys = append(keys, m.MessageID)
	}
	return keys
}

func once(keys ...string) map[string]int {
	m := map[string]int{}
	for _, k := range keys {
		m[k] = 1
	}
	return m
}

// links are proxies between an engine and its servers.
type links struct{ amqp, mysql, redis *stack.TCPProxy }

// proxied leads the next engine through proxies; the test itself goes directly.
func (w *world) proxied() links {
	w.t.Helper()
	l := links{amqp: stack.Proxy(w.t, stack.Addr(w.t, w.amqpURL)), mysql: stack.Proxy(w.t, stack.Addr(w.t, w.dsn))}
	w.amqpURL, w.dsn = l.amqp.Through(w.amqpURL), l.mysql.Through(w.dsn)
	if w.redisURL != "" {
		l.redis = stack.Proxy(w.t, stack.Addr(w.t, w.redisURL))
		w.redisURL = l.redis.Through(w.redisURL)
	}
	return l
}

// sever cuts all links for good.
func (l links) sever() {
	for _, p := range []*stack.TCPProxy{l.amqp, l.mysql, l.redis} {
		if p != nil {
			p.Refuse(true)
			p.Cut()
		}
	}
}

// crashAt runs an engine into a point and lets it die there: it stands still and its links are cut, so that from there
// on it is for its servers what a killed process is. It returns once that has happened.
func (w *world) crashAt(point consumer.Point) {
	w.t.Helper()
	cfg, amqp, dsn, redis := w.cfg, w.amqpURL, w.dsn, w.redisURL
	defer func() { w.cfg, w.amqpURL, w.dsn, w.redisURL = cfg, amqp, dsn, redis }()
	l := w.proxied()
	reached, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.cfg.DrainTimeout = 50 * time.Millisecond
	w.cfg.Hook = func(p consumer.Point) {
		if p == point {
			once.Do(func() { close(reached) })
		}
		if poll.IsClosed(reached) { // the whole process has stopped, at whatever points its lanes are
			<-released
		}
	}
	r := w.launch()
	w.t.Cleanup(func() {
		close(released)
		_ = r.drained() // it cannot: it is cut off
	})
	await(w.t, reached, "the engine comes to the point "+string(point))
	l.sever()
}

// blockAt makes engines started from now on wait at a point, once, from reached until release, or the end of the test.
func (w *world) blockAt(point consumer.Point) (reached <-chan struct{}, release func()) {
	at, goOn := make(chan struct{}), make(chan struct{})
	release = sync.OnceFunc(func() { close(goOn) })
	w.t.Cleanup(release)
	var first sync.Once
	w.cfg.Hook = func(p consumer.Point) {
		if p == point {
			first.Do(func() { close(at); <-goOn })
		}
	}
	return at, release
}

// into begins an engine, by start or launch, that waits at a point as blockAt has it, and returns when it does.
func (w *world) into(point consumer.Point, begin func() *running) (r *running, release func()) {
	w.t.Helper()
	reached, release := w.blockAt(point)
	r = begin()
	await(w.t, reached, "it comes to the point "+string(point))
	return r, release
}

func await(t *testing.T, event <-chan struct{}, what string) {
	t.Helper()
	poll.Receive(t, what, event)
}

// meets is await for a handler, whose goroutine goes on whatever comes of it.
func (w *world) meets(event <-chan struct{}, what string) {
	w.t.Helper()
	assert.That(w.t, poll.Within(20*time.Second, func() bool { return poll.IsClosed(event) }), "not after 20 s: %s", what)
}

// commit is MySQL's command COMMIT on the wire; READ COMMITTED is not.
var commit = []byte("\x03COMMIT")

// nthCommit matches the n-th COMMIT, from 1.
func nthCommit(n int) func([]byte) bool {
	seen := 0
	return func(piece []byte) bool {
		if bytes.HasSuffix(piece, commit) {
			seen++
			return seen == n
		}
		return false
	}
}

// paused waits until the engine names what is missing.
func (w *world) paused(r *running, what string) {
	w.t.Helper()
	w.eventually("paused because of "+what, func() bool { return waitsFor(r, what) })
}

// recovered waits until nothing is missing.
func (w *world) recovered(r *running) {
	w.t.Helper()
	w.eventually("nothing is missing", func() bool {
		s := r.State()
		return s.Consuming && len(s.Paused) == 0
	})
}

// sound waits until nothing is amiss.
func (w *world) sound(r *running) {
	w.t.Helper()
	w.eventually("nothing is amiss", func() bool { return len(r.State().Degraded) == 0 })
}

// names reports whether one of these, of a State, is about that.
func names(whys []string, what string) bool {
	return slices.ContainsFunc(whys, func(why string) bool { return strings.HasPrefix(why, what+": ") })
}

func waitsFor(r *running, what string) bool { return names(r.State().Paused, what) }
func degraded(r *running, what string) bool { return names(r.State().Degraded, what) }

// ended waits until every key has a row in this status.
func (w *world) ended(status dedup.Status, keys ...string) {
	w.t.Helper()
	var names []dedup.Identity
	for _, k := range keys {
		names = append(names, id(k))
	}
	w.eventually("all rows say "+status.String(), func() bool {
		rows, err := w.records.LookUp(context.WithoutCancel(w.t.Context()), names) // the test may have killed the server
		return err == nil && !slices.ContainsFunc(slices.Collect(maps.Values(rows)), func(r dedup.Row) bool {
			return r.Status != status
		})
	})
}

// quiet waits until no message is in the main queue or on its way back to it.
func (w *world) quiet() {
	w.t.Helper()
	live := without(w.topology().Queues(), w.deadQueue())
	w.eventually("the main queue and the retry queues are empty", func() bool { return w.broker.Quiet(live...) })
}

func (w *world) deadQueue() string { return rabbit.DeadQueue(w.cfg.Queue) }
func (w *world) backstop() string  { return rabbit.BackstopQueue(w.cfg.Queue) }

// dead is the number of letters.
func (w *world) dead() int { return w.broker.Depth(w.deadQueue()) }

// letter takes a letter.
func (w *world) letter() stack.Delivery {
	w.t.Helper()
	d, ok := w.broker.Get(w.deadQueue())
	require.That(w.t, ok, "there is no letter")
	return d
}

// move publishes a letter as somebody does who moves it by hand.
func (w *world) move(d stack.Delivery, queue string) {
	w.t.Helper()
	w.broker.Publish("", queue, stack.Message{
		MessageId: d.MessageId, Type: d.Type, Headers: d.Headers, Body: d.Body, DeliveryMode: rabbit.Persistent,
	})
}

// claim claims a message for another worker.
func (w *world) claim(key string) dedup.Claim {
	w.t.Helper()
	return require.Get(w.log(w.gorm).Claim(w.t.Context(), w.row(key), dedup.Entry{Identity: id(key)}, "another"))(w.t)
}

// times is how often the handler was called with this key.
func (w *world) times(key string) int { return w.calls.of()[key] }

// events is the story of a key.
func (w *world) events(key string) []dedup.Event {
	w.t.Helper()
	return require.Get(w.records.Events(w.t.Context(), id(key)))(w.t)
}

// number reads one number from the database.
func (w *world) number(query string) int {
	w.t.Helper()
	return column[int](w, query)[0]
}

// column has the values of a query with one column.
func column[T any](w *world, query string) (values []T) {
	w.t.Helper()
	require.OK(w.t, w.gorm.WithContext(w.t.Context()).Raw(query).Scan(&values).Error)
	return values
}

// end waits until the deliveries have ended like this, all of them.
func (w *world) end(want map[string]int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("outcomes %v", want), func() bool { return maps.Equal(w.outcomes(), want) })
}

// publishInto publishes straight into a queue and declares nothing.
func (w *world) publishInto(queue string, keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		w.publishBody(queue, key, "{}")
	}
}

// oneBatch makes sure that the next n messages come in one batch, however slow the machine is.
func (w *world) oneBatch(n int) {
	w.cfg.Lanes, w.cfg.BatchSize, w.cfg.BatchLinger = 1, n, 2*time.Second
	w.cfg.MemoryBudget = 1 << 30 // else the first batch is smaller while no body was seen
}

// effects is how often each key took effect.
func (w *world) effects() map[string]int {
	w.t.Helper()
	n := map[string]int{}
	for _, k := range column[string](w, "SELECT k FROM effect") {
		n[k]++
	}
	return n
}

// row reads the row of a key with the test's tag; status Absent when there is none.
func (w *world) row(key string) dedup.Row {
	return w.rowOf(id(key))
}

func (w *world) rowOf(key dedup.Identity) dedup.Row {
	w.t.Helper()
	rows := require.Get(w.records.LookUp(w.t.Context(), []dedup.Identity{key}))(w.t)
	return rows[key]
}

// outcomes reads rollbackd_deliveries_total of all engines of the test.
func (w *world) outcomes() map[string]int {
	w.t.Helper()
	return w.counts("rollbackd_deliveries_total")
}

// counts sums a metric over all engines of the test, by its first label; what is 0 is left out.
func (w *world) counts(metric string) map[string]int {
	w.t.Helper()
	n := map[string]int{}
	for labels, v := range w.samples(metric) {
		first, _, _ := strings.Cut(labels, " ")
		n[first] += v
	}
	return n
}

// sum is a metric as a whole.
func (w *world) sum(metric string) (sum int) {
	w.t.Helper()
	for _, n := range w.samples(metric) {
		sum += n
	}
	return sum
}

// samples are the same by all labels.
func (w *world) samples(metric string) map[string]int {
	w.t.Helper()
	w.mu.Lock()
	regs := slices.Clone(w.regs)
	w.mu.Unlock()
	n := map[string]int{}
	for _, reg := range regs {
		families := require.Get(reg.Gather())(w.t)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					if l.GetName() != "queue" || metric == "rollbackd_degraded" { // of the others it is the same everywhere
						labels = append(labels, l.GetValue())
					}
				}
				v := int(m.GetCounter().GetValue()+m.GetGauge().GetValue()) + int(m.GetHistogram().GetSampleCount())
				if f.GetName() == metric && v != 0 {
					n[strings.Join(labels, " ")] += v
				}
			}
		}
	}
	return n
}

func TestMain(m *testing.M) {
	stack.AtOnce(8)
	stack.Main(m)
}
