package deadletter_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestAWatchedReplayWaitsForWhatBecomesOfItsLetters(t *testing.T) {
	w := newWorld(t)
	const n = 300
	w.dead(dedup.ReasonPermanent, names("k", n)...)
	w.cured()
	waiting := 0
	res := w.replay(all, deadletter.ReplayOptions{Window: 40, Progress: func(p deadletter.Progress) {
		waiting = max(waiting, p.Waiting)
	}})
	if res.Replayed != n || res.Applied != n || res.FailedAgain != 0 || res.Unsettled != 0 {
		t.Errorf("%+v; want all %d replayed and applied", res, n)
	}
	assert.AtMost(t, waiting, 40, "letters waited at a time")
	w.wantEffects(n)
}

func TestADaemonThatComesWhileAReplayWaitsIsWaitedForToTheEnd(t *testing.T) {
	w := newWorld(t)
	const n = 41
	w.dead(dedup.ReasonPermanent, names("k", n)...)
	// given that a full window of letters waits and nobody consumes them, when a daemon begins to
	begin := sync.OnceFunc(func() { w.cured() })
	res := w.replay(all, deadletter.ReplayOptions{Window: n - 1, Progress: func(p deadletter.Progress) {
		if p.Waiting == n-1 {
			begin()
		}
	}})
	// then the last letter is waited for as well: what was true a moment before it came says nothing about it
	if res.Replayed != n || res.Applied != n || res.Unsettled != 0 {
		t.Errorf("%+v; want all %d replayed and applied", res, n)
	}
	w.wantEffects(n)
}

func TestAReplayEndsWhenTooManyOfItsLettersFailAgain(t *testing.T) {
	w := newWorld(t)
	const n = 300
	w.dead(dedup.ReasonPermanent, names("k", n)...)
	w.engine() // which refuses everything
	res, err := w.letters().Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester", Window: 20, MaxFailures: 5})
	if !errors.Is(err, deadletter.ErrTooManyFailures) || res.FailedAgain < 5 || res.Replayed > 5+20+20 {
		t.Fatalf("%+v, %v; want it to end after 5 failures and what was under way", res, err)
	}
	if res.Unseen != n-res.Replayed {
		t.Errorf("%d replayed, %d not seen; want %d in all", res.Replayed, res.Unseen, n)
	}
	w.WantQueues(0, n)
}

func TestFailuresOfOthersDoNotEndAReplay(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, names("old", 50)...) // dead, and not of this run
	w.dead(dedup.ReasonExhausted, "k")
	w.cured()
	res := w.replay(deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}}, deadletter.ReplayOptions{Window: 10,
		MaxFailures: 1})
	if res.Applied != 1 || res.FailedAgain != 0 {
		t.Errorf("%+v; want one applied", res)
	}
}

func TestAWatchedReplayWithoutADaemonDoesNotWait(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 3)...)
	res := w.replay(all, deadletter.ReplayOptions{Window: 500})
	if res.Replayed != 3 || res.Unsettled != 3 {
		t.Errorf("%+v; want 3 replayed, none settled", res)
	}
	w.WantQueues(3, 0)
}

func TestAnInterruptedWaitLeavesWhatWasNotReplayed(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 30)...)
	ctx, cancel := context.WithCancel(t.Context())
	// given no daemon, so that the window stays full
	res, err := w.letters().Replay(ctx, all, deadletter.ReplayOptions{By: "tester", Window: 10,
		Progress: func(p deadletter.Progress) {
			if p.Waiting == 10 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) || res.Replayed != 10 || res.Unseen != 20 || len(res.Left) != 0 {
		t.Errorf("%+v, %v; want 10 replayed and 20 not seen", res, err)
	}
	w.WantQueues(10, 20)
}

func TestARateBoundsHowFastLettersGo(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 12)...)
	began := time.Now()
	res := w.replay(all, deadletter.ReplayOptions{Rate: 10})
	// the first goes at once, each further one at least a tenth of a second later; a slow machine only makes it slower
	if took := time.Since(began); res.Replayed != 12 || took < time.Second {
		t.Errorf("%d letters in %v, want 12 in a second at least", res.Replayed, took)
	}
	w.WantQueues(12, 0)
}

func TestARunThatTakesLongGivesBackWhatItHoldsAndGoesOn(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonPermanent, names("other", 300)...)
	w.dead(dedup.ReasonExhausted, names("k", 600)...)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	first := true
	res, err := letters.Replay(t.Context(), deadletter.Filter{Reasons: []dedup.Reason{"exhausted"}},
		deadletter.ReplayOptions{
			By: "tester", Progress: func(deadletter.Progress) {
				if first { // a letter that comes now is not of this run
					w.letter("late")
				}
				first = false
			},
		})
	if err != nil || res.Replayed != 600 || res.NotSelected != 300 || res.Seen != 900 || res.Unseen != 0 {
		t.Errorf("%+v, %v; want 600 replayed, 300 passed", res, err)
	}
	w.WantQueues(600, 301)
}

func TestAKeyThatWasFoundBeforeTheRunGaveBackWhatItHeldIsNotMissing(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("k", 450)...)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	// given two keys that are far apart, and one that no letter has
	res, err := letters.Replay(t.Context(), deadletter.Filter{Keys: []string{"k-00001", "k-00449", "nobody's"}},
		deadletter.ReplayOptions{By: "tester"})
	if err != nil || res.Replayed != 2 || !slices.Equal(res.NotFound, []string{"nobody's"}) {
		t.Errorf("%+v, %v; want two replayed and nobody's missing", res, err)
	}
	w.WantQueues(2, 448)
}

func TestNonsenseOptionsAreRefused(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, "k")
	for _, o := range []deadletter.ReplayOptions{{Rate: -1}, {Window: -1}, {Window: deadletter.MaxWindow + 1},
		{MaxFailures: -1, Window: 1}, {MaxFailures: 3}} {
		if _, err := w.letters().Replay(t.Context(), all, o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	for _, f := range []deadletter.Filter{{}, {Limit: 3}} {
		if _, err := w.letters().Replay(t.Context(), f, deadletter.ReplayOptions{}); !errors.Is(err, deadletter.ErrNoFilter) {
			t.Errorf("Replay(%+v) = %v, want ErrNoFilter", f, err)
		}
	}
	w.WantQueues(0, 1)
	assert.Is(t, w.Row("k").Status, dedup.Dead, "row")
}
