package operator_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const day = 24 * time.Hour

func TestNothingIsFoundWhereAllAgreeAndAPurgedQueueIsSentAgainOnce(t *testing.T) {
	w := newWorld(t).dead("no", names("dead", 2300)...) // several pages and channels
	for i, order := range names("order", 700) {
		w.success(group, order, time.Hour)
		w.reservation(order, 1, 2, order, time.Hour)
		w.reservation(order, 2, 1+i%2*2, "", 2*time.Hour) // the rest of the order, reserved or deducted
	}
	w.reservation("whole", 0, 4, "order-00000", time.Hour) // a refusal by a success
	w.reservation("by a service", 1, 2, "", time.Hour)     // which names nobody
	r := w.run(nil)
	w.wantFound(r)
	assert.Is(t, [4]int{r.Letters, r.Rows, r.Reservations, len(r.Unclear)}, [4]int{2300, 2300, 1402, 0},
		"letters, rows, reservations, unclear %q", r.Unclear)
	w.Broker.Purge(rabbit.DeadQueue(w.Queue))
	require.Is(t, len(w.run(nil).Findings), 2300, "found")
	r = w.run(func(o *operator.Reconciliation) { o.Republish = true })
	assert.Is(t, [2]int{r.Open(), w.Broker.Depth(w.Queue)}, [2]int{0, 2300}, "left, and sent")
	w.wantFound(w.run(nil))
}

func TestARowIsOverdueAnHourAfterItsLeaseOrDueTime(t *testing.T) {
	w := newWorld(t)
	for name, row := range map[string]struct {
		status dedup.Status
		ago    time.Duration
	}{
		"just due":        {dedup.Failed, time.Hour - 31*time.Second}, // half a minute is for a busy machine
		"long due":        {dedup.Failed, time.Hour + time.Second},
		"lease over":      {dedup.Processing, time.Hour},
		"lease long over": {dedup.Processing, time.Hour + letters.Lease + 2*time.Second},
	} {
		w.Insert(letters.Identity(name), row.status, row.ago)
	}
	r := w.run(nil)
	w.wantFound(r, "overdue lease long over", "overdue long due")
	assert.Is(t, r.Findings[0].Hindrance != "", true, "it says that its body is not kept")
	// nor is one sent again whose letter is refused: its delivery waits
	w.Exec("UPDATE consumer_log SET reason = 'malformed' WHERE msg_key = 'long due'")
	r = w.run(func(o *operator.Reconciliation) { o.Republish = true })
	w.wantFound(r, "overdue lease long over", "overdue long due")
	assert.Is(t, r.Findings[1].Hindrance, operator.LetterRefused, "of the refused one it says")
	assert.Is(t, [2]int{r.Open(), w.Broker.Depth(w.Queue)}, [2]int{2, 0}, "left, and sent")
	r = w.run(func(o *operator.Reconciliation) { o.Overdue = time.Minute })
	assert.Is(t, len(r.Findings), 4, "after a minute: %q", found(r))
}

// Given a message that failed for good again after a replay from its row, whose letter the queue refuses, while the one
// of before lies there stale, then it is no replay that was cut off: to finish that would run it once more.
func TestAnOlderLetterIsNotThatWhichIsRefused(t *testing.T) {
	w := newWorld(t).dead("no", "k")
	w.Exec("UPDATE consumer_log SET consumer_status = 2, reason = 'malformed', replays = 1, consumer_timestamp = " +
		"UTC_TIMESTAMP(6) - INTERVAL 2 HOUR")
	r := w.run(nil)
	w.wantFound(r, "overdue k")
	assert.Is(t, r.Findings[0].Hindrance, operator.LetterRefused, "of it it says")
	w.Exec("UPDATE consumer_log SET replays = 0")
	w.wantFound(w.run(nil), "interrupted_replay k")
}

func TestWhatMovesBetweenTheLooksIsNotReported(t *testing.T) {
	w := newWorld(t).purged("purged", "moving")
	w.reservation("A", 1, 2, "not yet", time.Minute)
	w.reservation("B", 1, 2, "never", time.Minute)
	// given a replay and a daemon that act while the first look is behind and the second is to come
	moved := false
	applied := sync.OnceFunc(func() { w.success(group, "not yet", 0) })
	r := w.run(func(o *operator.Reconciliation) {
		o.Progress = func(what string, seen int) {
			if what == "reservations" && !moved {
				moved = true
				w.Dead(dedup.ReasonExhausted, "no", "on its way") // whose row is yet to come
				w.Exec("DELETE FROM consumer_log WHERE msg_key = 'on its way'")
				w.Exec("UPDATE consumer_log SET consumer_status = 2, consumer_times = 0, replays = 1, consumer_timestamp = " +
					"UTC_TIMESTAMP(6) WHERE msg_key = 'moving'")
			}
			if what == "rows" && moved {
				applied()
			}
		}
	})
	w.wantFound(r, "dead_without_letter purged", "released_without_success never")
}

func TestReleasesAreJudgedByTheMessageTheyName(t *testing.T) {
	w := newWorld(t)
	w.success("another group", "shared", time.Hour)
	w.reservation("1 of another group", 1, 2, "shared", time.Hour)
	w.reservation("2 older than the retention", 1, 2, "pruned", retention+day)
	w.reservation("3 gone", 1, 2, "gone", time.Hour)
	w.dead("no", "died")
	w.reservation("4 of a dead one", 1, 2, "died", time.Hour)
	w.reservation("5 refused", 0, 4, "gone too", time.Hour)
	w.Reservation("6 of a service", 1, 2, dedup.Identity{Tag: "our.own", Key: "x"}, 0)
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
	r = w.run(func(o *operator.Reconciliation) { o.Except = []string{"our.own"} })
	w.wantFound(r, "released_without_success died", "success_not_released 9 not at all")
	assert.Is(t, w.Row("gone").Status, dedup.Success, "row")
}

func TestAReleaseThatWasTakenBackMeanwhileIsNotAdopted(t *testing.T) {
	w := newWorld(t)
	// given a reservation that is held, and then changed, by somebody else just when it is to be adopted
	w.reservation("B", 1, 2, "gone too", time.Hour)
	tx := require.Get(w.Pool.BeginTx(t.Context(), nil))(t)
	require.Get(tx.ExecContext(t.Context(), "UPDATE stock_reservation SET status = 1, rollback_tag = NULL, "+
		"rollback_key = NULL WHERE order_sn = 'B'"))(w.T)
	done := make(chan operator.Report)
	go func() {
		o := w.options(operator.Bounds{})
		o.Retention, o.Adopt = 0, true
		r, err := o.Run(t.Context())
		assert.OK(t, err)
		done <- r
	}()
	poll.Until(w.T, "somebody waits for the lock", func() bool {
		return w.Number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE '%FOR UPDATE%' AND "+
			"id <> CONNECTION_ID()") > 0
	})
	w.Must(tx.Commit())
	r := <-done
	assert.That(t, r.Open() == 1 && r.Findings[0].Failure != "", "%+v; want it left, and why", r.Findings)
	assert.Is(t, w.Row("gone too").Status, dedup.Absent, "row")
}

func TestARunThatIsStoppedSaysSo(t *testing.T) {
	w := newWorld(t).purged("purged")
	ctx, cancel := context.WithCancel(t.Context())
	o := w.options(operator.Bounds{})
	o.OrderOf, o.Settle, o.Republish = nil, time.Hour, true
	o.Progress = func(what string, _ int) {
		if what == "rows" {
			cancel()
		}
	}
	_, err := o.Run(ctx)
	assert.That(t, errors.Is(err, context.Canceled) && w.Broker.Depth(w.Queue) == 0,
		"error %v, %d sent; want that it was stopped, and nothing sent", err, w.Broker.Depth(w.Queue))
}

const retention = letters.Retention

func (w *world) options(bounds operator.Bounds) operator.Reconciliation {
	w.T.Helper()
	return operator.Reconciliation{Lookup: w.lookup(),
		Letters: require.Get(deadletter.New(letters.Options(w.Records, w.Broker.URL, w.Queue)))(w.T), Retention: retention,
		Settle: 10 * time.Millisecond, By: "ann", Bounds: bounds}
}

// run reconciles with short pauses.
func (w *world) run(change func(*operator.Reconciliation)) operator.Report {
	w.T.Helper()
	o := w.options(operator.Bounds{})
	if change != nil {
		change(&o)
	}
	return require.Get(o.Run(w.T.Context()))(w.T)
}

// success makes a row of an applied message, so long ago.
func (w *world) success(inGroup, name string, ago time.Duration) {
	w.T.Helper()
	w.Insert(dedup.Identity{Group: inGroup, Tag: tag, Key: name}, dedup.Success, ago)
}

// reservation makes one that was last changed so long ago; by is the key of the message that it names, "" for none.
func (w *world) reservation(order string, sku, status int, by string, ago time.Duration) {
	w.T.Helper()
	w.Reservation(order, sku, status, letters.Identity(by), ago)
}

func found(r operator.Report) (all []string) {
	for _, f := range r.Findings {
		name := f.Key
		if name == "" {
			name = f.Order
		}
		all = append(all, fmt.Sprintf("%s %s", f.Kind, name))
	}
	return all
}

func (w *world) wantFound(r operator.Report, want ...string) {
	w.T.Helper()
	assert.Equal(w.T, found(r), want, "found")
}

// What a message did not name is not missed: one whose items another message had released already is success without an
// effect, and what its order has reserved besides is nobody's mistake (A). A message without items that refuses also
// marks its order as a whole, which is no part that it released: what is reserved beside the mark, and was before the
// message took effect, was put back by a hand (B). The success row of a message that released and marked an order is
// gone: that is one finding, about what it released (C, and D of which nothing had been reserved), and adopting it
// mends it.
func TestTheMarkOfAWholeOrderHidesNothingAndIsNoFindingOfItsOwn(t *testing.T) {
	w := newWorld(t)
	w.reservation("A", 1, 2, "m-1", time.Hour) // released by m-1, partly cancelled
	w.success(group, "m-1", time.Hour)
	w.success(group, "A", 30*time.Minute) // items: sku 1 only, which was released
	w.reservation("A", 2, 1, "", 2*time.Hour)
	w.reservation("B", 0, 4, "B", time.Hour)
	w.reservation("B", 1, 1, "", 2*time.Hour)
	w.success(group, "B", time.Hour)
	w.reservation("C", 0, 4, "m-2", time.Hour)
	w.reservation("C", 1, 2, "m-2", time.Hour)
	w.reservation("D", 0, 4, "m-3", time.Hour)
	r := w.run(nil)
	w.wantFound(r, "released_without_success m-2", "released_without_success m-3", "success_not_released B")
	assert.Is(t, r.Findings[0].Was+" and "+r.Findings[1].Was, "released and refused", "the orders are said to be")
	w.run(func(o *operator.Reconciliation) { o.Adopt = true })
	w.wantFound(w.run(nil), "success_not_released B")
}

// A body that was refused as conflict has become the body of its key: somebody mended the row. Its own letter, when
// that was purged, is missed by nobody. While another body has the key, it is.
func TestAConflictWhoseBodyHasItsKeyByNowIsNotMissed(t *testing.T) {
	w := newWorld(t)
	for name, has := range map[string]string{"mended": "{}", "taken": "another"} {
		d := letters.Message(name, "{}")
		own := w.Identify(d)
		w.success(group, name, time.Minute)
		hash := sha256.Sum256([]byte(has))
		w.Exec("UPDATE consumer_log SET body_hash = ? WHERE msg_key = ?", hash[:], name)
		filed, cause := wire.Conflict(own, d.Body)
		w.Must(w.Records.DeadRows(t.Context(),
			[]dedup.Death{{Entry: letters.Entry(filed, d), Reason: "conflict", Cause: cause.Error()}})...)
	}
	w.MoveBack(time.Minute)
	r := w.run(nil)
	require.That(t, len(r.Findings) == 1 && r.Findings[0].Kind == "dead_without_letter",
		"found %q, want the one conflict whose key another body has", found(r))
	row := w.RowOf(dedup.Identity{Group: group, Tag: r.Findings[0].Tag, Key: r.Findings[0].Key})
	assert.Is(t, row.MessageID, "taken", "it is the message")
}
