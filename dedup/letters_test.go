package dedup

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// letterLimit is a hundred letters an hour, and a pause of half an hour.
func letterLimit() LetterLimit {
	return LetterLimit{Group: "g", Queue: "q", Most: 100, Window: time.Hour, Pause: 30 * time.Minute}
}

// reserve wants so many letters, and that the limit holds for about so long.
func (w *world) reserve(limit LetterLimit, n, want int, wantHolds time.Duration) {
	w.t.Helper()
	got, holds, err := w.log.ReserveLetters(w.t.Context(), limit, n)
	if err != nil || got != want || holds > wantHolds || holds < wantHolds-time.Minute {
		w.t.Errorf("of %d letters it got %d, for %v (%v); want %d, for %v", n, got, holds, err, want, wantHolds)
	}
}

// later moves the window of a queue into the past, as if so much time had gone by.
func (w *world) later(limit LetterLimit, d time.Duration) {
	w.t.Helper()
	var n letterNote
	name := w.log.noteName("letters", limit.Group, limit.Queue)
	stored, _, err := w.log.readNote(w.t.Context(), w.pool, name, &n)
	if err != nil || stored == nil {
		w.t.Fatal(err)
	}
	n.Since -= d.Microseconds()
	if n.Until > 0 {
		n.Until -= d.Microseconds()
	}
	if _, err := w.log.writeNote(w.t.Context(), w.pool, name, stored, n); err != nil {
		w.t.Fatal(err)
	}
}

func TestOfManyWhoReserveLettersAtOnceTheLimitIsShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				got, _, err := w.log.ReserveLetters(t.Context(), letterLimit(), 7)
				if err != nil {
					t.Error(err)
				}
				sum.Add(int64(got))
			}
		})
	}
	wg.Wait()
	if sum.Load() != 100 {
		t.Errorf("%d letters were given in all, want 100", sum.Load())
	}
}

func TestAWindowOfLettersBeginsAnewWhenItIsOverOrItsPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limit := letterLimit()
	w.reserve(limit, 60, 60, 0)
	w.later(limit, 59*time.Minute)
	w.reserve(limit, 40, 40, 0)
	// when the window is over, then another one begins
	w.later(limit, time.Minute)
	w.reserve(limit, 100, 100, 0)
	// when more is asked for, then nobody gets any until the pause is over, however old the window becomes
	w.reserve(limit, 1, 0, 30*time.Minute)
	limit.Window = time.Minute
	w.later(limit, 20*time.Minute)
	w.reserve(limit, 1, 0, 10*time.Minute)
	w.later(limit, 10*time.Minute)
	w.reserve(limit, 101, 100, 30*time.Minute)
	// a clock that was set back does not make it hold longer
	w.later(limit, -48*time.Hour)
	w.reserve(limit, 1, 1, 0)
	// another queue and another group have limits of their own
	other := limit
	other.Queue = "another"
	w.reserve(other, 100, 100, 0)
}

func TestAsManyLettersAsMessagesWereAppliedAreWithinTheLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limit := letterLimit()
	applied := entries(300)
	wantError(t, "insert", w.insertSuccess(applied...), nil)
	limit.Group = applied[0].Identity.Group
	w.reserve(limit, 250, 250, 0)
	w.reserve(limit, 100, 50, 30*time.Minute)
	// more are applied while it holds
	var more []Entry
	for i := range 100 {
		e := applied[i]
		e.Identity.Key = fmt.Sprintf("more-%d", i)
		more = append(more, e)
	}
	wantError(t, "insert", w.insertSuccess(more...), nil)
	w.reserve(limit, 50, 50, 0)
	// what was applied before the window counts no more
	w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 2 HOUR")
	w.later(limit, 2*time.Hour)
	w.reserve(limit, 101, 100, 30*time.Minute)
}
