package reconcile_test

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
	"github.com/rollbackd/rollbackd/internal/reconcile"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/stock"
)

const (
	group     = "g"
	tag       = "stock.rollback"
	retention = 720 * time.Hour
)

// world is a fresh schema and a fresh set of queues, with no daemon.
type world struct {
	t         *testing.T
	broker    *stack.Broker
	queue     string
	db        *gorm.DB
	pool      *sql.DB
	records   *dedup.Log
	letters   *deadletter.Letters
	publisher *rabbit.Publisher
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, broker: stack.AMQP(t)}
	w.queue = w.broker.Name("stock.rollback")
	var err error
	if w.db, _, err = dedup.Open(t.Context(), stack.MySQL(t), dedup.OpenOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.pool, err = w.db.DB(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.pool.Close() })
	if err := dedup.Migrate(t.Context(), w.db, dedup.MigrateOptions{
		Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
	}); err != nil {
		t.Fatal(err)
	}
	if w.records, err = dedup.NewLog(w.db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 3,
	}); err != nil {
		t.Fatal(err)
	}
	topology := rabbit.TopologyConfig{
		Exchange: w.broker.Name("stock"), Queue: w.queue, RoutingKeys: []string{tag}, Delays: []time.Duration{time.Second},
	}
	w.broker.Track(topology.Queues()...)
	w.broker.TrackExchanges(topology.Exchange)
	conn := w.dial()
	if _, err := rabbit.Declare(t.Context(), conn, topology); err != nil {
		t.Fatal(err)
	}
	w.letters, err = deadletter.New(deadletter.Options{
		Records: w.records, AMQPURLs: []string{w.broker.URL}, Name: "test", Group: group, Queue: w.queue,
		KeyFrom: "property:message_id", Retention: retention,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.publisher = rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	t.Cleanup(func() { _ = w.publisher.Close(context.WithoutCancel(t.Context())) })
	return w
}

func (w *world) dial() *rabbit.Conn {
	w.t.Helper()
	conn, err := rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.pool.ExecContext(w.t.Context(), query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

// run reconciles with short pauses.
func (w *world) run(change func(*reconcile.Options)) reconcile.Report {
	w.t.Helper()
	o := reconcile.Options{
		Records: w.records, Letters: w.letters, Group: group, DB: w.db, Retention: retention, Settle: 10 * time.Millisecond,
		By: "ann",
	}
	if change != nil {
		change(&o)
	}
	r, err := reconcile.Run(w.t.Context(), o)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// dead makes dead messages with their letters, unless without.
func (w *world) dead(letters bool, names ...string) {
	w.t.Helper()
	sources, err := wire.ParseKeySources("property:message_id")
	if err != nil {
		w.t.Fatal(err)
	}
	var batch []rabbit.Publishing
	var rows []dedup.Death
	for _, name := range names {
		d := rabbit.Delivery{Message: rabbit.Message{MessageID: name, Body: []byte("{}")}, Exchange: "stock", RoutingKey: tag}
		id, err := wire.Identify(group, sources, w.queue, d)
		if err != nil {
			w.t.Fatal(err)
		}
		batch = append(batch, rabbit.Publishing{
			Key: rabbit.DeadQueue(w.queue), Message: wire.Copy(d, w.queue, wire.CopyOptions{
				Identity: id, Reason: dedup.ReasonExhausted, Error: "no",
			}),
		})
		rows = append(rows, dedup.Death{
			Entry: dedup.Entry{
				Identity: id.Identity, BodyHash: sha256.Sum256(d.Body), MessageID: name, Body: d.Body,
				Properties: wire.MarshalProperties(d),
			},
			Reason: "exhausted", Cause: "no",
		})
	}
	if letters {
		for _, err := range w.publisher.Publish(w.t.Context(), batch) {
			if err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if err := errors.Join(w.records.DeadRows(w.t.Context(), rows)...); err != nil {
		w.t.Fatal(err)
	}
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 1 MINUTE, dead_at = dead_at - " +
		"INTERVAL 1 MINUTE")
}

// success makes a row of an applied message, so long ago.
func (w *world) success(inGroup, name string, ago time.Duration) {
	w.t.Helper()
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
		"consumer_timestamp, created_at) VALUES (?, ?, ?, 1, 1, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6))",
		inGroup, tag, name, int(ago.Seconds()))
}

// reservation makes one that was last changed so long ago; by is the key of the message that it names, "" for none.
func (w *world) reservation(order string, sku, status int, by string, ago time.Duration) {
	w.t.Helper()
	var byTag, byKey any
	if by != "" {
		byTag, byKey = tag, by
	}
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) "+
		"VALUES (?, ?, 1, ?, ?, ?, UTC_TIMESTAMP(6) - INTERVAL ? SECOND)",
		order, sku, status, byTag, byKey, int(ago.Seconds()))
}

func found(r reconcile.Report) (all []string) {
	for _, f := range r.Findings {
		name := f.Key
		if name == "" {
			name = f.Order
		}
		all = append(all, fmt.Sprintf("%s %s", f.Kind, name))
	}
	return all
}

func (w *world) wantFound(r reconcile.Report, want ...string) {
	w.t.Helper()
	if have := found(r); !slices.Equal(have, want) {
		w.t.Errorf("found %q, want %q", have, want)
	}
}

func names(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%05d", prefix, i))
	}
	return all
}
