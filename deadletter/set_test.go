package deadletter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestACountByFingerprintSaysThatItDidNotLookEverywhere(t *testing.T) {
	w := newWorld(t)
	w.deadMany(dedup.ReasonExhausted, 1200)
	w.Exec("UPDATE consumer_log SET remark = 'shelf is locked'")
	w.Exec("UPDATE consumer_log SET remark = 'no such order' WHERE msg_key IN ('k-00001', 'k-01199')")
	w.Exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp + INTERVAL 1 SECOND WHERE msg_key = 'k-01199'")
	w.MoveBack(2 * time.Second)
	now := require.Get(w.Records.Now(t.Context()))(w.T)
	set := deadletter.Set{Filter: deadletter.Filter{Fingerprint: deadletter.Fingerprint("no such order")}, CutOff: now,
		Name: "count"}
	for _, tc := range []struct {
		through, matched int
		more             bool
	}{{10_000, 2, false}, {600, 1, true}} {
		matched, _, more, err := w.letters().CountSet(t.Context(), set, 100, tc.through)
		if err != nil || matched != tc.matched || more != tc.more {
			t.Errorf("through %d letters: %d, more %t, %v; want %d, %t", tc.through, matched, more, err, tc.matched, tc.more)
		}
	}
	if matched, _, more, err := w.letters().CountSet(t.Context(), set, 1, 10_000); err != nil || matched != 1 || !more {
		t.Errorf("one at most: %d, more %t, %v; want one and more", matched, more, err)
	}
}

func TestASweepTakesNoLetterThatMayBeItsMessagesOnlyCopy(t *testing.T) {
	// replaySet replays the letter as a run of the pages does: from its row, while its letter stays in the queue.
	replaySet := func(w *world) error {
		now, err := w.Records.Now(w.T.Context())
		w.Must(err)
		_, err = w.letters().Replay(w.T.Context(), deadletter.Set{Filter: all, CutOff: now, Name: "run-1"},
			deadletter.ReplayOptions{By: "ann"})
		return err
	}
	replayed := func(w *world) {
		w.Must(replaySet(w))
	}
	claimed := func(w *world) dedup.Claim {
		replayed(w)
		d := message("k", "{}")
		return require.Get(w.Records.Claim(w.T.Context(), w.Row("k"), entry(w.Identify(d), d), "host/1/1/k"))(w.T)
	}
	for name, tc := range map[string]struct {
		given   func(w *world)
		main    int // copies in the main queue
		dropped int
	}{
		"its row is dead": {given: func(*world) {}},
		"it was reopened by a process that died before it published": {given: func(w *world) {
			w.killAt(deadletter.PointReopened)
			if err := replaySet(w); !errors.Is(err, errKilled) {
				w.T.Fatalf("ReplaySet = %v, want the kill", err)
			}
			w.hook = nil
		}},
		"it was published, and nobody has taken it": {given: replayed, main: 1},
		"its copy is being processed":               {given: func(w *world) { claimed(w) }, main: 1, dropped: 1},
		"its copy has failed": {given: func(w *world) {
			_, errs := w.Records.FailAll(w.T.Context(), []dedup.Failure{{Claim: claimed(w), Cause: "shelf is locked"}})
			w.Must(errs...)
		}, main: 1, dropped: 1},
		"its row was discarded": {given: func(w *world) {
			d := message("k", "{}")
			w.Must(w.Records.Discard(w.T.Context(), w.Row("k"), entry(w.Identify(d), d), "ann", "a test"))
		}, dropped: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.dead(dedup.ReasonExhausted, "k")
			w.MoveBack(time.Second)
			tc.given(w)
			w.WantQueues(tc.main, 1)
			// when the queue is swept, also twice
			for i := range 2 {
				res, err := w.letters().Sweep(t.Context())
				if err != nil || i == 0 && res.Dropped != tc.dropped {
					t.Fatalf("Sweep = %+v, %v; want %d dropped", res, err, tc.dropped)
				}
				w.WantQueues(tc.main, 1-tc.dropped)
			}
			if tc.dropped > 0 {
				return
			}
			// then what stayed can be replayed
			w.replay(all, deadletter.ReplayOptions{})
			w.WantQueues(tc.main+1, 0)
		})
	}
}
