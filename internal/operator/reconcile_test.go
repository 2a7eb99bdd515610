package operator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const day = 24 * time.Hour

func TestNothingIsFoundWhereAllAgree(t *testing.T) {
	w := newShop(t)
	w.dead(true, names("dead", 2300)...) // several pages and channels
	for i, order := range names("order", 700) {
		w.success(group, order, time.Hour)
		w.reservation(order, 1, 2, order, time.Hour)
		w.reservation(order, 2, 1+i%2*2, "", 2*time.Hour) // the rest of the order, reserved or deducted
	}
	w.reservation("whole", 0, 4, "order-00000", time.Hour) // a refusal by a success
	w.reservation("by a service", 1, 2, "", time.Hour)     // which names nobody
	r := w.run(nil)
	w.wantFound(r)
	if r.Letters != 2300 || r.Rows != 2300 || r.Reservations != 1402 || len(r.Unclear) != 0 {
		t.Errorf("%d letters, %d rows, %d reservations, %q; want 2300, 2300, 1402, nothing unclear", r.Letters, r.Rows,
			r.Reservations, r.Unclear)
	}
}

func TestARowIsOverdueAnHourAfterItsLeaseOrDueTime(t *testing.T) {
	w := newShop(t)
	// the delay is 1s; half a minute is for a busy machine
	for name, ago := range map[string]time.Duration{
		"just due": time.Hour - 30*time.Second, "long due": time.Hour + 2*time.Second,
	} {
		w.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at) VALUES (?, ?, ?, 2, 1, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6))",
			group, tag, name, int(ago.Seconds())-1)
	}
	// the lease is 1m
	for name, ago := range map[string]time.Duration{
		"lease over": time.Hour, "lease long over": time.Hour + 62*time.Second,
	} {
		w.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
			"consumer_timestamp, created_at) VALUES (?, ?, ?, 0, 1, UTC_TIMESTAMP(6) - INTERVAL ? SECOND, UTC_TIMESTAMP(6))",
			group, tag, name, int(ago.Seconds()))
	}
	w.wantFound(w.run(nil), "overdue lease long over", "overdue long due")
	if r := w.run(func(o *operator.Reconciliation) { o.Overdue = time.Minute }); len(r.Findings) != 4 {
		t.Errorf("after a minute: %q, want all four", found(r))
	}
	r := w.run(nil)
	if r.Findings[0].Hindrance == "" {
		t.Errorf("%+v does not say that its body is not kept", r.Findings[0])
	}
}

func TestWhatMovesBetweenTheLooksIsNotReported(t *testing.T) {
	w := newShop(t)
	w.dead(false, "purged", "moving")
	w.reservation("A", 1, 2, "not yet", time.Minute)
	w.reservation("B", 1, 2, "never", time.Minute)
	// given a replay and a daemon that act while the first look is behind and the second is to come
	moved := false
	r := w.run(func(o *operator.Reconciliation) {
		o.Progress = func(what string, seen int) {
			if what == "reservations" && !moved {
				moved = true
				w.Exec("UPDATE consumer_log SET consumer_status = 2, consumer_times = 0, replays = 1, consumer_timestamp = " +
					"UTC_TIMESTAMP(6) WHERE msg_key = 'moving'")
			}
			if what == "rows" && moved {
				w.Exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
					"consumer_timestamp, created_at)"+
					" SELECT ?, ?, 'not yet', 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) FROM (SELECT 1 AS one) AS once WHERE NOT "+
					"EXISTS (SELECT 1 FROM consumer_log AS l WHERE l.msg_key = 'not yet')", group, tag)
			}
		}
	})
	w.wantFound(r, "dead_without_letter purged", "released_without_success never")
}

func TestALetterThatSomebodyElseHoldsIsNotMissed(t *testing.T) {
	w := newShop(t)
	w.dead(true, names("k", 10)...)
	w.Hold(4)
	r := w.run(func(o *operator.Reconciliation) { o.Republish = true })
	w.wantFound(r)
	assert.Is(t, len(r.Unclear), 1, "unclear: %q", r.Unclear)
	assert.Is(t, w.Broker.Depth(w.Queue), 0, "messages were sent again whose letters another reader holds")
}

func TestReleasesAreJudgedByTheMessageTheyName(t *testing.T) {
	w := newShop(t)
	w.success("another group", "shared", time.Hour)
	w.reservation("1 of another group", 1, 2, "shared", time.Hour)
	w.reservation("2 older than the retention", 1, 2, "pruned", retention+day)
	w.reservation("3 gone", 1, 2, "gone", time.Hour)
	w.dead(true, "died")
	w.reservation("4 of a dead one", 1, 2, "died", time.Hour)
	w.reservation("5 refused", 0, 4, "gone too", time.Hour)
	w.Exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, updated_at) " +
		"VALUES ('6 of a service', 1, 1, 2, 'our.own', 'x', UTC_TIMESTAMP(6))")
	// an order whose message is applied, in part, and has the rest reserved; one reserved anew after it; one not released
	// at all
	w.success(group, "7 in part", time.Hour)
	w.reservation("7 in part", 1, 2, "7 in part", time.Hour)
	w.reservation("7 in part", 2, 1, "", 2*time.Hour)
	w.success(group, "8 again", time.Hour)
	w.reservation("8 again", 1, 1, "", time.Minute)
	w.success(group, "9 not at all", time.Hour)
	w.reservation("9 not at all", 1, 1, "", 2*time.Hour)
	w.reservation("9 not at all", 2, 3, "", 2*time.Hour)
	r := w.run(func(o *operator.Reconciliation) { o.Except = []string{"our.own"} })
	w.wantFound(r, "released_without_success died", "released_without_success gone", "released_without_success gone too",
		"success_not_released 9 not at all")
	assert.Is(t, r.TooOld, 1, "releases are too old to be judged")
	assert.Equal(t, r.Findings[3].Items, []operator.Item{{SKU: 1, Quantity: 1}}, "to be released")
	if r := w.run(func(o *operator.Reconciliation) { o.Retention = 0 }); r.TooOld != 0 || len(r.Findings) != 6 {
		t.Errorf("rows are kept for ever: %d too old, %q; want all of them judged", r.TooOld, found(r))
	}
	// an adoption ends the two whose rows are gone, not the one that died
	r = w.run(func(o *operator.Reconciliation) { o.Except, o.Adopt = []string{"our.own"}, true })
	assert.Is(t, r.Open(), 2, "%+v", r.Findings)
	w.wantFound(w.run(func(o *operator.Reconciliation) {
		o.Except = []string{"our.own"}
	}), "released_without_success died", "success_not_released 9 not at all")
	assert.Is(t, w.Row("gone").Status, dedup.Success, "row")
}

func TestAReleaseThatWasTakenBackMeanwhileIsNotAdopted(t *testing.T) {
	w := newShop(t)
	w.reservation("A", 1, 2, "gone", time.Hour)
	if r := w.run(func(o *operator.Reconciliation) { o.Adopt = true }); len(r.Findings) != 1 || r.Open() != 0 {
		t.Fatalf("%+v; want it adopted", r.Findings)
	}
	// given one whose reservation is held, and then changed, by somebody else just when it is to be adopted
	w.reservation("B", 1, 2, "gone too", time.Hour)
	tx, err := w.Pool.BeginTx(t.Context(), nil)
	w.Must(err)
	require.Get(tx.ExecContext(t.Context(), "UPDATE stock_reservation SET status = 1, rollback_tag = NULL, "+
		"rollback_key = NULL WHERE order_sn = 'B'"))(w.T)
	done := make(chan operator.Report)
	go func() {
		o := w.options(operator.Bounds{})
		o.Retention, o.Adopt = 0, true
		r, err := o.Run(t.Context())
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	w.waitForLockWait()
	w.Must(tx.Commit())
	r := <-done
	if r.Open() != 1 || r.Findings[0].Failure == "" {
		t.Errorf("%+v; want it left, and why", r.Findings)
	}
	assert.Is(t, w.Row("gone too").Status, dedup.Absent, "row")
}

// waitForLockWait waits until a statement waits for a lock.
func (w *shop) waitForLockWait() {
	w.T.Helper()
	poll.Until(w.T, "somebody waits for the lock", func() bool {
		return w.Number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE '%FOR UPDATE%' AND "+
			"id <> CONNECTION_ID()") > 0
	})
}

func TestAPurgedQueueOfManyPagesIsSentAgainOnce(t *testing.T) {
	w := newShop(t)
	w.dead(true, names("k", 2500)...)
	w.Broker.Purge(rabbit.DeadQueue(w.Queue))
	if r := w.run(nil); len(r.Findings) != 2500 {
		t.Fatalf("%d found, want 2500", len(r.Findings))
	}
	r := w.run(func(o *operator.Reconciliation) { o.Republish = true })
	if r.Open() != 0 || w.Broker.Depth(w.Queue) != 2500 {
		t.Errorf("%d are left, %d were sent; want all 2500 sent", r.Open(), w.Broker.Depth(w.Queue))
	}
	w.wantFound(w.run(nil))
}

func TestARunThatIsStoppedSaysSo(t *testing.T) {
	w := newShop(t)
	w.dead(false, "purged")
	ctx, cancel := context.WithCancel(t.Context())
	o := w.options(operator.Bounds{})
	o.OrderOf, o.Settle, o.Republish = nil, time.Hour, true
	o.Progress = func(what string, _ int) {
		if what == "rows" {
			cancel()
		}
	}
	_, err := o.Run(ctx)
	if !errors.Is(err, context.Canceled) || w.Broker.Depth(w.Queue) != 0 {
		t.Errorf("error %v, %d sent; want that it was stopped, and nothing sent", err, w.Broker.Depth(w.Queue))
	}
}
