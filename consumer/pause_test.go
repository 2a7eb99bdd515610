package consumer_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// order pauses the fleet as a person does; the test's database is the one that everybody asks.
func (w *world) order(id, why string, lasts time.Duration) {
	w.t.Helper()
	if _, err := w.records.SetPause(w.t.Context(), w.db, group, w.cfg.Queue, dedup.Pause{ID: id, By: "anna", Why: why},
		lasts, ""); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) resume(id string) {
	w.t.Helper()
	if _, err := w.records.EndPause(w.t.Context(), w.db, group, w.cfg.Queue, id); err != nil {
		w.t.Fatal(err)
	}
}

func pausedByAnna(r *running) bool { return !r.State().Consuming && knowsPause(r) }

// knowsPause reports whether the daemon has read anna's order, also while its work in hand is being finished.
func knowsPause(r *running) bool {
	return slices.ContainsFunc(r.State().Paused, func(why string) bool {
		return strings.HasPrefix(why, consumer.PausedByPerson+": paused by anna until ")
	})
}

// Given two daemons in the middle of a backlog, when a person pauses the fleet, then what is in hand is finished,
// the rest is in the queue again, and no message is charged more than one delivery.
func TestAPauseStopsEachDaemonOfTheFleetAndChargesNoMessageMoreThanOneDelivery(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.BatchSize, w.cfg.Prefetch = 10, 200
	w.publish("{}", keys("order", 2000)...)
	reached, release := w.blockAt(consumer.PointCommitted)
	// given two daemons in the middle of a backlog
	first, second := w.start(), w.start()
	await(t, reached, "a batch is in hand")
	// when a person pauses the fleet
	w.order("p1", "the shelves are counted", time.Hour)
	w.eventually("both know of it", func() bool { return knowsPause(first) && knowsPause(second) })
	release()
	// then both stop, what was in hand is finished, the rest is in the queue again
	w.eventually("both are paused", func() bool { return pausedByAnna(first) && pausedByAnna(second) })
	w.eventually("nobody holds anything", func() bool {
		return w.broker.Unacked(w.cfg.Queue) == 0 && w.broker.Consumers(w.cfg.Queue) == 0
	})
	applied := len(w.effects())
	if applied == 0 || applied+w.broker.Depth(w.cfg.Queue) != 2000 {
		t.Fatalf("%d effects and %d messages in the queue, want 2000 in all", applied, w.broker.Depth(w.cfg.Queue))
	}
	if up := w.counts("rollbackd_paused"); up["person"] != 2 { // the sum over the daemons
		t.Errorf("rollbackd_paused: %v, want person at 2", up)
	}
	for range 50 {
		d, ok := w.broker.Get(w.cfg.Queue)
		if !ok {
			t.Fatal("the queue is empty")
		}
		if n, _ := d.Headers["x-delivery-count"].(int64); n > 1 {
			t.Errorf("a message that was given back is charged %d deliveries, want 1 at most", n)
		}
		w.publish(string(d.Body), d.MessageId) // it was taken out by this test
	}
	// and a daemon that starts meanwhile takes nothing
	third := w.start()
	w.eventually("the third is paused", func() bool { return pausedByAnna(third) })
	if n := len(w.effects()); n != applied {
		t.Errorf("%d effects while it is paused, %d before", n, applied)
	}
	// when the pause is ended, all go on
	w.resume("p1")
	w.eventually("all applied", func() bool { return len(w.effects()) == 2000 })
	for key, n := range w.effects() {
		if n != 1 {
			t.Errorf("%s has %d effects", key, n)
		}
	}
	w.eventually("all consume", func() bool {
		return first.State().Consuming && second.State().Consuming && third.State().Consuming
	})
	if up := w.counts("rollbackd_paused"); up["person"] != 0 {
		t.Errorf("rollbackd_paused: %v, want person at 0", up)
	}
}

func TestAPauseEndsByItselfAlsoWhileMySQLIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	w.dsn = proxy.Through(w.dsn)
	r := w.start()
	w.eventually("it consumes", func() bool { return r.State().Consuming })
	// given a pause that it has heard of
	w.order("p1", "the shelves are counted", 8*time.Second)
	ends := time.Now().Add(8 * time.Second)
	w.eventually("it is paused", func() bool { return pausedByAnna(r) })
	w.publish("{}", "order-1")
	// when MySQL is away and the order is taken back
	proxy.Refuse(true)
	proxy.Cut()
	w.resume("p1")
	// then it keeps to what it knew until the end, and then waits for MySQL alone
	w.eventually("its end", func() bool {
		paused := slices.ContainsFunc(r.State().Paused, func(why string) bool {
			return strings.HasPrefix(why, consumer.PausedByPerson)
		})
		if !paused && time.Now().Before(ends.Add(-time.Second)) {
			t.Fatal("it went on before the end, although nobody could tell it so")
		}
		return !paused
	})
	proxy.Refuse(false)
	w.ended(dedup.Success, "order-1")
}
