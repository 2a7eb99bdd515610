package consumer_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Given claimed messages that failed for good, a dead-letter queue that refuses their letters for longer than a lease,
// and behind them in the batch a message that waits for locks of others for longer than a lease, when a second engine
// has copies of them, then none gets a further attempt: one letter each, one counted attempt, its reason kept. Lease
// and HandlerTimeout are to each other as by default.
func TestALetterThatWaitsForLongerThanALeaseCostsNoSecondAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second
	w.redisURL, w.patience = "", time.Minute // the log alone keeps copies away
	shipped := keys("shipped", 6)            // of which the last are not settled when the one behind them begins
	w.oneBatch(len(shipped) + 1)
	w.exec("CREATE TABLE busy (n INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO busy VALUES (0)")
	var attempts atomic.Int32
	w.handler = consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		switch {
		case m.Attempt == 0:
			return errors.New("not in the fast path")
		case m.Key != "behind":
			attempts.Add(1)
			return consumer.Permanent(errors.New("already shipped"))
		}
		<-time.After(800 * time.Millisecond)
		if err := tx.Exec("UPDATE busy SET n = n + 1").Error; err != nil {
			return err
		}
		return insert(tx, m.Key)
	})
	w.declare()
	room := w.full(rabbit.DeadQueue(w.cfg.Queue))
	other := w.conn()
	w.execOn(other, "BEGIN")
	w.execOn(other, "UPDATE busy SET n = n + 100")
	w.publish("{}", append(slices.Clone(shipped), "behind")...)
	claimed := time.Now()
	w.start()
	w.eventually("their attempts have failed", func() bool { return int(attempts.Load()) == len(shipped) })
	second := w.start()
	w.publish("{}", shipped...)
	w.eventually("copies have come, and two leases are over", func() bool {
		return w.held() > 0 && time.Since(claimed) > 2*w.cfg.Lease
	})
	w.execOn(other, "COMMIT")
	w.ended(dedup.Success, "behind")
	for _, k := range shipped {
		if row := w.row(k); row.Status != dedup.Failed || row.Reason != "permanent" {
			t.Errorf("while its letter waits %s is %v because %q, want failed, permanent", k, row.Status, row.Reason)
		}
	}
	if err := second.drained(); err != nil { // without the lock two that hold a letter may publish it at once
		t.Fatal(err)
	}
	room()
	w.ended(dedup.Dead, shipped...)
	w.quiet()
	w.want("letters", w.letters(), once(shipped...))
	w.want("effects", w.effects(), once("behind"))
	for _, k := range shipped {
		if row := w.row(k); row.Attempts != 2 || row.Reason != "permanent" || row.Remark != "already shipped" {
			t.Errorf("%s is dead after %d attempts because %q: %q; want 2, permanent, already shipped", k, row.Attempts,
				row.Reason, row.Remark)
		}
	}
	if n := int(attempts.Load()); n != len(shipped) {
		t.Errorf("%d attempts were made, want one each of %d", n, len(shipped))
	}
}

// Given a claimed message that failed for good, when its letter finds a RabbitMQ that answers nothing for longer than a
// lease, and a second engine has a copy of it, then the copy is its letter and no attempt.
func TestALetterWithoutAnAnswerCostsNoSecondAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Lease, w.cfg.HandlerTimeout = 3*time.Second, 2*time.Second
	w.redisURL, w.patience = "", time.Minute
	w.oneBatch(1)
	w.cfg.Prefetch = 1 // so that its copy goes to the second engine
	amqp, dsn := w.amqpURL, w.dsn
	l := w.proxied()
	var attempts atomic.Int32
	w.handler = consumer.Each(func(_ context.Context, _ *gorm.DB, m consumer.Message) error {
		if m.Attempt == 0 {
			return errors.New("not in the fast path")
		}
		if attempts.Add(1) == 1 {
			l.amqp.Hold(true)
		}
		return consumer.Permanent(errors.New("already shipped"))
	})
	w.publish("{}", "shipped")
	first := w.launch()
	w.eventually("its attempt has failed", func() bool { return attempts.Load() == 1 })
	w.amqpURL, w.dsn = amqp, dsn
	w.start()
	w.publish("{}", "shipped")
	w.ended(dedup.Dead, "shipped")
	l.sever()
	_ = first.drained() // it may be cut off from everything
	row := w.row("shipped")
	if row.Attempts != 2 || row.Reason != "permanent" || row.Remark != "already shipped" {
		t.Errorf("dead after %d attempts because %q: %q; want 2, permanent, already shipped", row.Attempts, row.Reason,
			row.Remark)
	}
	if n := attempts.Load(); n != 1 {
		t.Errorf("%d attempts were made, want 1", n)
	}
	w.quiet()
	w.want("letters", w.letters(), once("shipped"))
}

// Given two messages in the backstop whose processes died in an attempt, when the second one's row is locked for longer
// than a lease, and a copy of the first comes meanwhile, then the copy is its letter, the only one, and the handler
// never runs.
func TestTheBackstopsClaimOutlivesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.redisURL, w.patience = "", time.Minute
	w.crashed(1, "one", "two")
	w.declare()
	w.publishInto(rabbit.BackstopQueue(w.cfg.Queue), "one", "two")
	other := w.conn()
	w.execOn(other, "BEGIN")
	w.execOn(other, "SELECT * FROM consumer_log WHERE msg_key = 'two' FOR UPDATE")
	locked := time.Now()
	w.cfg.BatchLinger = 500 * time.Millisecond
	first := w.start()
	w.eventually("the first is claimed", func() bool { return w.row("one").Attempts == 2 })
	second := w.start()
	w.publish("{}", "one")
	w.ended(dedup.Dead, "one")
	w.eventually("the lock outlives two leases", func() bool { return time.Since(locked) > 2*w.cfg.Lease })
	w.execOn(other, "COMMIT")
	w.ended(dedup.Dead, "two")
	w.recovered(first)
	w.recovered(second)
	w.quiet()
	for _, k := range []string{"one", "two"} {
		if row := w.row(k); row.Attempts != 2 || row.Reason != "delivery_limit" {
			t.Errorf("%s is dead after %d attempts because %q, want 2 and delivery_limit", k, row.Attempts, row.Reason)
		}
		if n := w.times(k); n != 0 {
			t.Errorf("the handler got %s %d times", k, n)
		}
	}
	w.want("letters", w.letters(), once("one", "two"))
}
