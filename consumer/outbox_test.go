package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// eventOf is the event of a message.
func eventOf(m consumer.Message) outbox.Message {
	return outbox.Message{Tag: "shelf.filled", Key: m.Key, Body: m.Body, RoutingKey: "shelf.filled"}
}

// withOutbox makes the outbox, and a handler that writes the effects of all, puts their events in, and only then blames
// those that are rejected.
func (w *world) withOutbox() {
	w.t.Helper()
	require.OK(w.t, outbox.Migrate(w.t.Context(), w.open(stack.ForMigrations(w.t, w.direct))))
	w.batch(func(tx *gorm.DB, msgs []consumer.Message) error {
		events := make([]outbox.Message, len(msgs))
		for i, m := range msgs {
			events[i] = eventOf(m)
		}
		if err := outbox.Put(tx.Statement.Context, consumer.SQL(tx), events...); err != nil {
			return err
		}
		return blaming(msgs, w.judge)
	})
}

// sent lets a relay send what is in the outbox, and returns how often each event came to a queue.
func (w *world) sent() map[string]int {
	w.t.Helper()
	queue := w.broker.Name("events")
	w.broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum"})
	w.broker.Bind(queue, "shelf.filled", w.cfg.Exchange)
	r := require.Get(relay.New(relay.Config{DB: w.db, AMQPURLs: []string{w.broker.URL}, Exchange: w.cfg.Exchange}))(w.t)
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	w.eventually("the outbox is empty", func() bool { return w.number("SELECT COUNT(*) FROM rollbackd_outbox") == 0 })
	stop()
	require.OK(w.t, <-ended)
	came := map[string]int{}
	for _, d := range w.broker.GetAll(queue) {
		came[d.MessageId]++
	}
	return came
}

// Given messages that are applied in each of the four ways, all in one batch and beside some that are blamed again and
// again after they have put their events in, then each that has had its effect has one event, and no other has any.
func TestAnEventIsCommittedWithItsEffectWhicheverWayTheMessageIsApplied(t *testing.T) {
	w := newWorld(t)
	fresh, before := keys("fresh", 8), keys("failed-before", 6)
	taken, replayed, bad := keys("taken-over", 4), keys("replayed", 3), keys("hopeless", 3)
	all := append(append(append(append(fresh, before...), taken...), replayed...), bad...)
	w.oneBatch(len(all))
	w.withOutbox()
	w.flaky(before...)
	w.failing(bad...)
	var mended atomic.Bool
	for _, k := range replayed {
		w.rejecting(k, func() error {
			if mended.Load() {
				return nil
			}
			return consumer.Permanent(errors.New("already shipped"))
		})
	}
	w.crashed(1, taken...)
	w.startWith(all...)
	w.ended(dedup.Dead, replayed...)
	mended.Store(true)
	cfg := w.cfg
	cfg.AMQPURLs = []string{w.broker.URL}
	letters := require.Get(cfg.Letters(w.open(w.direct)))(t)
	res, err := letters.Replay(t.Context(), deadletter.Filter{Keys: replayed}, deadletter.ReplayOptions{By: "tester"})
	if err != nil || res.Replayed != len(replayed) {
		t.Fatalf("the replay: %+v, %v", res, err)
	}
	w.ended(dedup.Dead, bad...)
	w.quiet()
	w.applied(without(all, bad...)...)
	w.want("events", w.sent(), once(without(all, bad...)...))
}

// An event that waits already with another body is a failed attempt of its message alone, and no trouble of the
// database's, although it is a server's error and ends the transaction for all.
func TestAnEventInConflictIsAFailedAttemptOfItsMessageAlone(t *testing.T) {
	w := newWorld(t)
	w.withOutbox()
	w.exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, routing_key) " +
		"VALUES ('shelf.filled', 'order-0007', 'another', 'shelf.filled')")
	all := keys("order", 20)
	w.judged(all, map[string]int{"applied": 19, "retried": 2, "dead_lettered": 1}, all[7])
	w.wantRow(all[7], wanted{Reason: dedup.ReasonExhausted, Attempts: w.cfg.MaxAttempts,
		Says: `shelf.filled/"order-0007": ` + outbox.ErrConflict.Error()})
	if log := w.logs.String(); strings.Contains(log, "database") {
		t.Errorf("the database is said to be in trouble:\n%s", log)
	}
	w.want("events", w.sent(), once(all...)) // with the one that waited
}

// Given a Config with an Outbox and an empty schema, when a handler puts messages, then Run has made the table and
// sends them; without the table, and without Migrate, Run ends and says who makes it.
func TestAConsumerRelaysItsOutbox(t *testing.T) {
	w := newWorld(t)
	events := w.broker.Name("events")
	w.broker.DeclareExchange(w.cfg.Exchange, "topic")
	w.broker.DeclareQueue(events, nil)
	w.broker.Bind(events, "shelf.filled", w.cfg.Exchange)
	cfg := w.opened(stack.MySQL(t))
	cfg.Outbox = true
	put := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		return outbox.Put(ctx, consumer.SQL(tx), eventOf(m))
	}
	c := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(put)))(t)
	stop := w.run(c)
	w.eventually("it consumes", func() bool { return c.State().Consuming })
	w.publish("{}", "a", "b")
	w.eventually("the events", func() bool { return w.broker.Depth(events) == 2 })
	require.OK(t, w.open(cfg.MySQLDSN).Exec("DROP TABLE rollbackd_outbox").Error)
	w.eventually("the outbox is named", func() bool {
		return slices.ContainsFunc(c.State().Degraded, func(why string) bool { return strings.HasPrefix(why, "outbox: ") })
	})
	require.OK(t, stop())

	cfg.MySQLDSN, cfg.Migrate = w.direct, false // the log alone is there
	err := require.Get(consumer.Open(t.Context(), cfg, consumer.Each(put)))(t).Run(t.Context())
	if !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "rollbackd migrate --outbox") {
		t.Errorf("Run = %v, want an error that says who makes the table of the outbox", err)
	}
}

// Given a table that is missing when a message comes, whoever's it is, then the log names it, the message stays in the
// queue and has no row; once the table is there the message is applied by its first attempt.
func TestATableThatIsMissingIsNamedAndWaitedFor(t *testing.T) {
	each(t, map[string]struct{ table, made string }{
		"the handler's":    {"effect", "CREATE TABLE effect (k VARBINARY(255) NOT NULL, body MEDIUMBLOB NOT NULL)"},
		"the outbox":       {"rollbackd_outbox", ""},
		"the consumer log": {"consumer_log", "RENAME TABLE gone TO consumer_log"},
	}, func(t *testing.T, w *world, missing struct{ table, made string }) {
		w.doing(func(tx *gorm.DB, m consumer.Message) error {
			if missing.table != "rollbackd_outbox" {
				return nil
			}
			return outbox.Put(tx.Statement.Context, consumer.SQL(tx), eventOf(m))
		})
		w.cfg.GiveBackAfter = 200 * time.Millisecond
		r := w.start()
		w.recovered(r)
		switch missing.table {
		case "consumer_log":
			w.exec("RENAME TABLE consumer_log TO gone")
		case "effect":
			w.exec("DROP TABLE effect")
		}
		w.publish("{}", "order")
		said := func() bool {
			log := w.logs.String()
			return strings.Contains(log, "waiting for mysql") && strings.Contains(log, "."+missing.table+"' doesn't exist") &&
				strings.Contains(log, "do=\"make it: `rollbackd migrate`")
		}
		w.eventually("the log says what is missing", said)
		w.eventually("the delivery was given back, and waits", func() bool {
			return strings.Contains(w.logs.String(), `msg="deliveries given back"`) &&
				w.broker.Depth(w.cfg.Queue)+w.broker.Unacked(w.cfg.Queue) == 1
		})
		if missing.table != "consumer_log" {
			is(w, "rows", w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status <> 0"), 0)
		}
		if missing.made != "" {
			w.exec(missing.made)
		} else {
			require.OK(t, outbox.Migrate(t.Context(), w.open(stack.ForMigrations(t, w.direct))))
		}
		w.recovered(r)
		w.applied("order")
		w.wantRow("order", wanted{Attempts: 1})
	})
}
