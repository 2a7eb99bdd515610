package consumer_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/poll"
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

	direct  string  // DSN of the test itself
	db      *sql.DB // of the test itself
	records *dedup.Log
	handler consumer.Handler
	logs    *safeBuffer
	// patience is how long to wait for what must happen.
	patience time.Duration

	mu     sync.Mutex
	reject map[string]func() error // by key; guarded by mu
	calls  [][]string              // keys of each call of the handler; guarded by mu
	regs   []*prometheus.Registry  // of each engine started; guarded by mu
}

const (
	group = "test-group"
	tag   = "stock.rollback"
)

// servers are a test's own, to be killed and frozen. Those that are nil are shared with other tests.
type servers struct{ rabbit, mysql, redis *stack.Server }

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOn(t, servers{})
}

func newWorldOn(t *testing.T, own servers) *world {
	t.Helper()
	w := &world{t: t, reject: map[string]func() error{}, logs: &safeBuffer{}, patience: time.Minute}
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
		Lease: 3 * time.Second, HandlerTimeout: 2 * time.Second, DrainTimeout: 10 * time.Second,
		LockTTL: time.Second, DoneTTL: time.Minute,
		MaxDead: consumer.Off, WithoutKeeper: true, // each test that wants them says so
	}
	w.broker.Track(w.topology().Queues()...)
	w.broker.TrackExchanges(w.cfg.Exchange)
	w.direct = w.dsn
	migrating := w.open(stack.ForMigrations(t, w.direct))
	if err := dedup.Migrate(t.Context(), migrating, dedup.MigrateOptions{Table: "consumer_log"}); err != nil {
		t.Fatal(err)
	}
	handle := w.open(w.direct)
	var err error
	if w.db, err = handle.DB(); err != nil {
		t.Fatal(err)
	}
	w.records = w.log(handle)
	w.exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL, body MEDIUMBLOB NOT NULL) ENGINE=InnoDB")
	return w
}

func (w *world) topology() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: w.cfg.Exchange, Queue: w.cfg.Queue, RoutingKeys: w.cfg.RoutingKeys, Delays: w.cfg.RetryDelays,
	}
}

func (w *world) open(dsn string) *gorm.DB {
	w.t.Helper()
	db, _, err := dedup.Open(w.t.Context(), dsn, dedup.OpenOptions{
		LockWait: time.Second, ReadTimeout: 3 * time.Second, WriteTimeout: 3 * time.Second,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = pool.Close() })
	return db
}

func (w *world) log(db *gorm.DB) *dedup.Log {
	w.t.Helper()
	l, err := dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: w.cfg.Lease, Delays: w.cfg.RetryDelays, MaxAttempts: w.cfg.MaxAttempts,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// running is an engine that a test started.
type running struct {
	*consumer.Consumer
	stop context.CancelFunc
	done chan error // closed once Run has returned and its error is taken
	reg  *prometheus.Registry
}

// start starts an engine; the test's end stops it, and it must then have drained.
func (w *world) start() *running {
	w.t.Helper()
	r := w.launch()
	w.t.Cleanup(func() {
		if err := r.drained(); err != nil {
			w.t.Errorf("Run = %v, want a clean drain", err)
		}
		if w.t.Failed() {
			w.t.Logf("log of the engine:\n%s", w.logs)
		}
	})
	return r
}

// launch starts an engine that the test itself must end with drained.
func (w *world) launch() *running {
	w.t.Helper()
	db := w.open(w.dsn)
	var client redis.UniversalClient
	if w.redisURL != "" {
		var err error
		if client, err = lock.OpenRedis(w.redisURL, lock.RedisOptions{}); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = client.Close() })
	}
	reg := prometheus.NewRegistry()
	cfg := w.cfg
	cfg.AMQPURLs, cfg.Registerer = []string{w.amqpURL}, reg
	cfg.Logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c, err := consumer.New(cfg, w.handler, consumer.Options{DB: db, Redis: client})
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.regs = append(w.regs, reg)
	w.mu.Unlock()
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	r := &running{Consumer: c, stop: stop, done: make(chan error, 1), reg: reg}
	go func() { r.done <- c.Run(ctx) }() // joined by drained
	return r
}

// drained stops the engine and returns what Run returned; nil when it was asked before.
func (r *running) drained() error {
	r.stop()
	err, first := <-r.done
	if first {
		close(r.done)
	}
	return err
}

// handle is the world's handler.
func (w *world) handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	keys := make([]string, len(msgs))
	var blamed []consumer.BlamedMessage
	w.mu.Lock()
	for i, m := range msgs {
		keys[i] = m.Key
		if reject := w.reject[m.Key]; reject != nil {
			if err := reject(); err != nil {
				blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
			}
		}
	}
	w.calls = append(w.calls, keys)
	w.mu.Unlock()
	if len(blamed) > 0 {
		return consumer.Blame(blamed...)
	}
	for _, m := range msgs {
		if err := tx.WithContext(ctx).Exec("INSERT INTO effect (k, body) VALUES (?, ?)", m.Key,
			string(m.Body)).Error; err != nil {
			return err
		}
	}
	return nil
}

func (w *world) rejecting(key string, reject func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reject[key] = reject
}

// publish declares the topology and publishes one message per key, all with the same body.
func (w *world) publish(body string, keys ...string) {
	w.t.Helper()
	var msgs []rabbit.Message
	for _, key := range keys {
		msgs = append(msgs, rabbit.Message{MessageID: key, Body: []byte(body), DeliveryMode: rabbit.Persistent})
	}
	w.publishMessages(msgs...)
}

func (w *world) publishMessages(msgs ...rabbit.Message) {
	w.t.Helper()
	w.declare()
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(w.t.Context()) }()
	batch := make([]rabbit.Publishing, len(msgs))
	for i, m := range msgs {
		batch[i] = rabbit.Publishing{Exchange: w.cfg.Exchange, Key: tag, Message: m}
	}
	for i, err := range p.Publish(w.t.Context(), batch) {
		if err != nil {
			w.t.Fatalf("publish message %d: %v", i, err)
		}
	}
}

func (w *world) declare() {
	w.t.Helper()
	conn, err := rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := rabbit.Declare(w.t.Context(), conn, w.topology()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.ExecContext(context.WithoutCancel(w.t.Context()), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
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
		sum := 0
		for _, n := range w.outcomes() {
			sum += n
		}
		return sum >= deliveries
	})
}

// want compares two maps of counts.
func (w *world) want(what string, got, want map[string]int) {
	w.t.Helper()
	if !maps.Equal(got, want) {
		w.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// keys makes n keys.
func keys(prefix string, n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return slices.Clip(k)
}

func once(keys ...string) map[string]int {
	m := map[string]int{}
	for _, k := range keys {
		m[k] = 1
	}
	return m
}

// safeBuffer is a bytes.Buffer for several goroutines.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
