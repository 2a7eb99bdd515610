package deadletter_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	group   = "test-group"
	tag     = "stock.rollback"
	keyFrom = "header:x-message-key,property:message_id,body:sha256"
	lease   = time.Minute
)

var delays = []time.Duration{100 * time.Millisecond, time.Minute}

// world is a fresh log and a fresh set of queues.
type world struct {
	t       testing.TB
	broker  *stack.Broker
	queue   string
	dsn     string // of what Letters uses; a test may lead it through a proxy
	amqpURL string
	keyFrom string
	most    int // replays
	hook    func(deadletter.Point) error

	db        *sql.DB // of the test itself
	records   *dedup.Log
	publisher *rabbit.Publisher
	sources   []wire.KeySource
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldOf(t)
}

func newWorldOf(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, broker: stack.AMQP(t), dsn: stack.MySQL(t), keyFrom: keyFrom}
	w.queue, w.amqpURL = w.broker.Name("stock.rollback"), w.broker.URL
	migrating := w.open(stack.ForMigrations(t, w.dsn))
	if err := dedup.Migrate(t.Context(), migrating, dedup.MigrateOptions{Table: "consumer_log"}); err != nil {
		t.Fatal(err)
	}
	handle := w.open(w.dsn)
	var err error
	if w.db, err = handle.DB(); err != nil {
		t.Fatal(err)
	}
	w.records = w.log(handle)
	w.declare()
	w.publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	t.Cleanup(func() { _ = w.publisher.Close(context.WithoutCancel(t.Context())) })
	if w.sources, err = wire.ParseKeySources(keyFrom); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) topology() rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: w.broker.Name("stock"), Queue: w.queue, RoutingKeys: []string{tag}, Delays: delays,
	}
}

func (w *world) declare() {
	w.t.Helper()
	w.broker.Track(w.topology().Queues()...)
	w.broker.TrackExchanges(w.topology().Exchange)
	conn, err := rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := rabbit.Declare(w.t.Context(), conn, w.topology()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open(dsn string) *gorm.DB {
	w.t.Helper()
	db, _, err := dedup.Open(w.t.Context(), dsn, dedup.OpenOptions{
		LockWait: time.Second, DialTimeout: time.Second, ReadTimeout: 3 * time.Second,
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
	l, err := dedup.NewLog(db, dedup.LogOptions{Table: "consumer_log", Lease: lease, Delays: delays, MaxAttempts: 3})
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// letters is what is tested, over connections of its own.
func (w *world) letters() *deadletter.Letters {
	w.t.Helper()
	l, err := deadletter.New(deadletter.Options{
		Records: w.log(w.open(w.dsn)), AMQPURLs: []string{w.amqpURL}, Name: rabbit.ConnectionName("test"),
		Group: group, Queue: w.queue, KeyFrom: w.keyFrom, Retention: 720 * time.Hour, MaxReplays: w.most,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if w.hook != nil {
		l.Hook(w.hook)
	}
	return l
}

func (w *world) replay(f deadletter.Filter, o deadletter.ReplayOptions) deadletter.Result {
	w.t.Helper()
	o.By = "tester"
	res, err := w.letters().Replay(w.t.Context(), f, o)
	if err != nil {
		w.t.Fatalf("Replay: %v (%+v)", err, res)
	}
	return res
}

var all = deadletter.Filter{All: true}

// message is one as a producer published it.
func message(key, body string) rabbit.Delivery {
	return rabbit.Delivery{Message: rabbit.Message{MessageID: key, Body: []byte(body)}, Exchange: "stock", RoutingKey: tag}
}

func identity(name string) dedup.Identity { return dedup.Identity{Group: group, Tag: tag, Key: name} }

// put publishes the letter of a message to the dead-letter queue; its row is the caller's business.
func (w *world) put(d rabbit.Delivery, id wire.Identified, o wire.CopyOptions) {
	w.t.Helper()
	o.Identity = id
	if o.Reason == "" {
		o.Reason = dedup.ReasonExhausted
	}
	if o.Error == "" {
		o.Error = "shelf is locked"
	}
	err := w.publisher.Publish(w.t.Context(), []rabbit.Publishing{{
		Key: rabbit.DeadQueue(w.queue), Message: wire.Copy(d, w.queue, o),
	}})[0]
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) identify(d rabbit.Delivery) wire.Identified {
	id, _ := wire.Identify(group, w.sources, w.queue, d)
	return id
}

// letter puts a letter of an ordinary message, without a row.
func (w *world) letter(key string) {
	w.t.Helper()
	d := message(key, "{}")
	w.put(d, w.identify(d), wire.CopyOptions{Attempt: 3})
}

// dead makes letters with their rows, in one go, a second ago.
func (w *world) dead(reason dedup.Reason, keys ...string) {
	w.t.Helper()
	w.deadNow(reason, keys...)
	w.moveBack(time.Second)
}

func (w *world) deadNow(reason dedup.Reason, keys ...string) {
	w.t.Helper()
	var batch []rabbit.Publishing
	var rows []dedup.Death
	for _, key := range keys {
		d := message(key, "{}")
		id := w.identify(d)
		batch = append(batch, rabbit.Publishing{
			Key: rabbit.DeadQueue(w.queue), Message: wire.Copy(d, w.queue, wire.CopyOptions{Identity: id, Reason: reason,
				Error: "no"}),
		})
		rows = append(rows, dedup.Death{Entry: entry(id, d), Reason: reason, Cause: "no"})
	}
	for _, err := range w.publisher.Publish(w.t.Context(), batch) {
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := errors.Join(w.records.DeadRows(w.t.Context(), rows)...); err != nil {
		w.t.Fatal(err)
	}
}

func entry(id wire.Identified, d rabbit.Delivery) dedup.Entry {
	return dedup.Entry{
		Identity: id.Identity, BodyHash: sha256.Sum256(d.Body), MessageID: d.MessageID, Body: d.Body,
		Properties: wire.MarshalProperties(d),
	}
}

// deadMany makes n letters with their rows, named as names("k", n) does.
func (w *world) deadMany(reason dedup.Reason, n int) {
	w.t.Helper()
	for keys := range slices.Chunk(names("k", n), 5000) {
		w.deadNow(reason, keys...)
	}
	w.moveBack(time.Second)
}

// moveBack makes all rows so much older.
func (w *world) moveBack(d time.Duration) {
	w.t.Helper()
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL ? MICROSECOND, dead_at = dead_at "+
		"- INTERVAL ? MICROSECOND", d.Microseconds(), d.Microseconds())
}

// inState gives a key's row a state.
func (w *world) inState(key string, status dedup.Status) {
	w.t.Helper()
	ctx := w.t.Context()
	d := message(key, "{}")
	e := entry(w.identify(d), d)
	absent := dedup.Row{Identity: e.Identity, Version: dedup.Version{Status: dedup.Absent}}
	var err error
	switch status {
	case dedup.Absent:
	case dedup.Success:
		err = w.records.InsertSuccess(ctx, w.db, []dedup.Entry{e})
	case dedup.Processing, dedup.Failed:
		var claim dedup.Claim
		claim, err = w.records.Claim(ctx, absent, e, "host/1/1/"+key)
		if err == nil && status == dedup.Failed {
			_, errs := w.records.FailAll(ctx, []dedup.Failure{{Claim: claim, Cause: "shelf is locked"}})
			err = errs[0]
		}
	case dedup.Dead:
		err = w.records.Dead(ctx, absent, e, dedup.ReasonExhausted, "shelf is locked")
	case dedup.Discarded:
		err = w.records.Discard(ctx, absent, e, "somebody", "test")
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) row(name string) dedup.Row { w.t.Helper(); return w.rowOf(identity(name)) }

func (w *world) rowOf(key dedup.Identity) dedup.Row {
	w.t.Helper()
	row, err := w.records.Read(w.t.Context(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return row
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.db.ExecContext(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

// wantQueues waits until the main and the dead-letter queue hold so many messages, none of them unacked: what a run
// gives back is back a moment after its end.
func (w *world) wantQueues(main, dead int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%d messages in the main queue, %d letters", main, dead), func() (string, bool) {
		m, d := w.broker.Depth(w.queue), w.broker.Depth(rabbit.DeadQueue(w.queue))
		return fmt.Sprintf("%d and %d", m, d), m == main && d == dead
	})
}

func (w *world) eventually(what string, look func() (have string, ok bool)) {
	w.t.Helper()
	var have string
	if !poll.Within(time.Minute, func() (ok bool) { have, ok = look(); return ok }) {
		w.t.Fatalf("still not after a minute: %s; have %s", what, have)
	}
}

func (w *world) get(queue string) stack.Delivery {
	w.t.Helper()
	d, ok := w.broker.Get(queue)
	if !ok {
		w.t.Fatalf("queue %s is empty", queue)
	}
	return d
}

func names(prefix string, n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return k
}
