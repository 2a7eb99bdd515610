// Package letters makes a fresh consumer log and fresh queues, and puts dead letters there, for the tests of whoever
// works on letters. It must not judge what becomes of them.
package letters

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/stock"
)

// The settings of every world.
const (
	Group     = "test-group"
	Tag       = "stock.rollback"
	KeyFrom   = "header:x-message-key,property:message_id,body:sha256"
	Lease     = time.Minute
	Retention = 720 * time.Hour
)

// Delays are those between attempts.
var Delays = []time.Duration{100 * time.Millisecond, time.Minute}

// World is a log, with the tables of the stock beside it, and queues.
type World struct {
	T       testing.TB
	DSN     string
	DB      *gorm.DB
	Pool    *sql.DB // that of DB
	Records *dedup.Log

	Broker    *stack.Broker
	Queue     string
	Publisher *rabbit.Publisher
	sources   []wire.KeySource
}

// New makes a world.
func New(t testing.TB) *World {
	t.Helper()
	w := &World{T: t, DSN: stack.MySQL(t)}
	stack.Tables(t, w.DSN, "log and stock", func() {
		migrating, _ := w.Open(stack.ForMigrations(t, w.DSN), dedup.OpenOptions{})
		w.Must(dedup.Migrate(t.Context(), migrating, dedup.MigrateOptions{
			Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
		}))
	})
	w.DB, w.Pool = w.Open(w.DSN, dedup.OpenOptions{})
	w.Records = w.Log(w.DB)
	w.Broker = stack.AMQP(t)
	w.Queue = w.Broker.Name(Tag)
	w.Declare()
	w.Publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{w.Broker.URL}, Name: "test"})
	t.Cleanup(func() { _ = w.Publisher.Close(context.WithoutCancel(t.Context())) })
	w.sources = require.Get(wire.ParseKeySources(KeyFrom))(t)
	return w
}

// Must ends the test after an error.
func (w *World) Must(errs ...error) {
	w.T.Helper()
	require.OK(w.T, errs...)
}

// Declare makes the queues, or those that are gone.
func (w *World) Declare() {
	w.T.Helper()
	topology := rabbit.TopologyConfig{
		Exchange: w.Broker.Name("stock"), Queue: w.Queue, RoutingKeys: []string{Tag}, Delays: Delays,
	}
	w.Broker.Track(topology.Queues()...)
	w.Broker.TrackExchanges(topology.Exchange)
	require.Get(rabbit.Declare(w.T.Context(), w.Dial(), topology))(w.T)
}

// Dial makes a connection of the test's own.
func (w *World) Dial() *rabbit.Conn {
	w.T.Helper()
	conn := require.Get(rabbit.Dial(w.T.Context(), rabbit.Config{URLs: []string{w.Broker.URL}, Name: "test"}))(w.T)
	w.T.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Hold makes somebody else hold the next letters of the dead-letter queue.
func (w *World) Hold(n int) {
	w.T.Helper()
	other := require.Get(w.Dial().Consume(w.T.Context(), rabbit.DeadQueue(w.Queue), "other", n))(w.T)
	require.Get(other.Collect(w.T.Context(), n, time.Second, nil))(w.T)
}

// Quick makes a pool that waits for nothing long.
var Quick = dedup.OpenOptions{
	LockWait: time.Second, DialTimeout: time.Second, ReadTimeout: 3 * time.Second, MaxOpen: 12,
}

// Open makes a pool.
func (w *World) Open(dsn string, o dedup.OpenOptions) (*gorm.DB, *sql.DB) {
	w.T.Helper()
	db := require.First(dedup.Open(w.T.Context(), dsn, o))(w.T)
	pool := require.Get(db.DB())(w.T)
	w.T.Cleanup(func() { _ = pool.Close() })
	return db, pool
}

// Log is the log over a pool.
func (w *World) Log(db *gorm.DB) *dedup.Log {
	w.T.Helper()
	o := dedup.LogOptions{Table: "consumer_log", Lease: Lease, Delays: Delays, MaxAttempts: 3}
	return require.Get(dedup.NewLog(db, o))(w.T)
}

// Options are those of letters over a log.
func Options(records *dedup.Log, amqpURL, queue string) deadletter.Options {
	return deadletter.Options{
		Records: records, AMQPURLs: []string{amqpURL}, Name: rabbit.ConnectionName("test"), Group: Group, Queue: queue,
		KeyFrom: KeyFrom, Retention: Retention,
	}
}

// Message is one as a producer published it.
func Message(key, body string) rabbit.Delivery {
	return rabbit.Delivery{Message: rabbit.Message{MessageID: key, Body: []byte(body)}, Exchange: "stock", RoutingKey: Tag}
}

// Identity is a message's with this key.
func Identity(key string) dedup.Identity { return dedup.Identity{Group: Group, Tag: Tag, Key: key} }

// Absent is the row of a message that the log does not know.
func Absent(id dedup.Identity) dedup.Row {
	return dedup.Row{Identity: id, Version: dedup.Version{Status: dedup.Absent}}
}

// Entry is what a message leaves in its row.
func Entry(id wire.Identified, d rabbit.Delivery) dedup.Entry {
	return dedup.Entry{
		Identity: id.Identity, BodyHash: sha256.Sum256(d.Body), MessageID: d.MessageID, Body: d.Body,
		Properties: wire.MarshalProperties(d),
	}
}

// Identify says who a message is, or under what key it is filed.
func (w *World) Identify(d rabbit.Delivery) wire.Identified {
	id, _ := wire.Identify(Group, w.sources, w.Queue, d)
	return id
}

// Dead makes letters with their rows, in one go, a second ago.
func (w *World) Dead(reason dedup.Reason, cause string, keys ...string) {
	w.T.Helper()
	for some := range slices.Chunk(keys, 5000) {
		var batch []rabbit.Publishing
		for _, key := range some {
			d := Message(key, "{}")
			batch = append(batch, rabbit.Publishing{Key: rabbit.DeadQueue(w.Queue), Message: wire.Copy(d, w.Queue,
				wire.CopyOptions{Identity: w.Identify(d), Reason: reason, Error: cause})})
		}
		w.Must(w.Publisher.Publish(w.T.Context(), batch)...)
		w.Rows(reason, cause, some...)
	}
}

// Rows makes the rows of letters that are not in the queue.
func (w *World) Rows(reason dedup.Reason, cause string, keys ...string) {
	w.T.Helper()
	var rows []dedup.Death
	for _, key := range keys {
		d := Message(key, "{}")
		rows = append(rows, dedup.Death{Entry: Entry(w.Identify(d), d), Reason: reason, Cause: cause})
	}
	w.Must(w.Records.DeadRows(w.T.Context(), rows)...)
	w.MoveBack(time.Second)
}

// Insert makes a row that has been in this status for so long, after one attempt.
func (w *World) Insert(id dedup.Identity, status dedup.Status, ago time.Duration) {
	w.T.Helper()
	w.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at) VALUES (?, ?, ?, ?, 1, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6))",
		id.Group, id.Tag, id.Key, int(status), int(ago.Seconds()))
}

// Reservation makes one that was last changed so long ago by the message of this identity, by nobody if it has no key.
func (w *World) Reservation(order string, sku, status int, by dedup.Identity, ago time.Duration) {
	w.T.Helper()
	w.Exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) "+
		"VALUES (?, ?, 1, ?, IF(? = '', NULL, ?), NULLIF(?, ''), UTC_TIMESTAMP(6) - INTERVAL ? SECOND)",
		order, sku, status, by.Key, by.Tag, by.Key, int(ago.Seconds()))
}

// MoveBack makes all rows so much older.
func (w *World) MoveBack(d time.Duration) {
	w.T.Helper()
	w.Exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL ? MICROSECOND, dead_at = dead_at "+
		"- INTERVAL ? MICROSECOND", d.Microseconds(), d.Microseconds())
}

// Row is the row of the message with this key.
func (w *World) Row(key string) dedup.Row { w.T.Helper(); return w.RowOf(Identity(key)) }

// RowOf is the row of an identity.
func (w *World) RowOf(id dedup.Identity) dedup.Row {
	w.T.Helper()
	return require.Get(w.Records.Read(w.T.Context(), id))(w.T)
}

// Exec runs one statement.
func (w *World) Exec(query string, args ...any) {
	w.T.Helper()
	stack.Exec(w.T, w.Pool, query, args...)
}

// Number is the one that a query answers.
func (w *World) Number(query string, args ...any) int {
	w.T.Helper()
	return stack.Number(w.T, w.Pool, query, args...)
}

// Get takes the next message of a queue.
func (w *World) Get(queue string) stack.Delivery {
	w.T.Helper()
	d, ok := w.Broker.Get(queue)
	if !ok {
		w.T.Fatalf("queue %s is empty", queue)
	}
	return d
}

// Consume runs the engine of a daemon until the test ends.
func (w *World) Consume(handler consumer.Handler, change ...func(*consumer.Config)) {
	w.T.Helper()
	db, _ := w.Open(w.DSN, Quick)
	cfg := consumer.Config{
		Group: Group, Exchange: w.Broker.Name("stock"), Queue: w.Queue, RoutingKeys: []string{Tag}, KeyFrom: KeyFrom,
		MaxAttempts: 3, RetryDelays: Delays, Lanes: 2, BatchSize: 50, BatchLinger: 2 * time.Millisecond, Prefetch: 100,
		Lease: Lease, HandlerTimeout: 4 * time.Second, DrainTimeout: 10 * time.Second,
		AMQPURLs: []string{w.Broker.URL}, Logger: slog.New(slog.DiscardHandler),
		MaxDead: consumer.Off, WithoutKeeper: true,
	}
	for _, f := range change {
		f(&cfg)
	}
	c := require.Get(consumer.New(cfg, handler, consumer.Options{DB: db}))(w.T)
	ctx, stop := context.WithCancel(context.WithoutCancel(w.T.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.T.Cleanup(func() { stop(); assert.OK(w.T, <-done, "Run:") })
	w.Eventually("the engine consumes", func() (string, bool) { // else a replay finds nobody
		s := c.State()
		return fmt.Sprintf("%+v", s), s.Consuming
	})
}

// WantQueues waits until the main and the dead-letter queue hold so many messages, none of them unacked: what a run
// gives back is back a moment after its end.
func (w *World) WantQueues(main, dead int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("%d messages in the main queue, %d letters", main, dead), func() (string, bool) {
		m, d := w.Broker.Depth(w.Queue), w.Broker.Depth(rabbit.DeadQueue(w.Queue))
		return fmt.Sprintf("%d and %d", m, d), m == main && d == dead
	})
}

// Eventually waits for something.
func (w *World) Eventually(what string, look func() (have string, ok bool)) {
	w.T.Helper()
	var have string
	if !poll.Within(90*time.Second, func() (ok bool) { have, ok = look(); return ok }) {
		w.T.Fatalf("still not after 90 s: %s; have %s", what, have)
	}
}

// Names are n keys.
func Names(prefix string, n int) []string {
	k := make([]string, n)
	for i := range k {
		k[i] = fmt.Sprintf("%s-%05d", prefix, i)
	}
	return k
}
