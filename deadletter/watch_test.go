package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestAWatchedReplayWaitsForWhatBecomesOfItsLetters(t *testing.T) {
	const n = 300
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	w.cured()
	waiting := 0
	w.replay(all, deadletter.ReplayOptions{Window: 40, Progress: func(p deadletter.Progress) {
		waiting = max(waiting, p.Waiting)
	}}, "replayed 300, applied 300")
	assert.AtMost(t, waiting, 40, "letters waited at a time")
	w.wantEffects(n)
}

func TestADaemonThatComesWhileAReplayWaitsIsWaitedForToTheEnd(t *testing.T) {
	const n = 41
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	// given that a full window of letters waits and nobody consumes them, when a daemon begins to
	begin := sync.OnceFunc(func() { w.cured() })
	// then the last letter is waited for as well: what was true a moment before it came says nothing about it
	w.replay(all, deadletter.ReplayOptions{Window: n - 1, Progress: func(p deadletter.Progress) {
		if p.Waiting == n-1 {
			begin()
		}
	}}, "replayed 41, applied 41")
	w.wantEffects(n)
}

func TestAReplayEndsWhenTooManyOfItsLettersFailAgain(t *testing.T) {
	const n = 300
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	w.engine() // which refuses everything
	res, err := w.tries(all, deadletter.ReplayOptions{Window: 20, MaxFailures: 5})
	require.That(t, errors.Is(err, deadletter.ErrTooManyFailures) && res.FailedAgain >= 5 && res.Replayed <= 5+20+20,
		"%+v, %v; want it to end after 5 failures and what was under way", res, err)
	assert.Is(t, res.Replayed+res.Unseen, n, "replayed and not seen")
	w.WantQueues(0, n)
}

func TestFailuresOfOthersDoNotEndAReplay(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, names("old", 50)...) // dead, and not of this run
	w.dead(dedup.ReasonExhausted, "k")
	w.cured()
	res := w.replay(ofReason(dedup.ReasonExhausted), deadletter.ReplayOptions{Window: 10, MaxFailures: 1})
	assert.Is(t, [2]int{res.Applied, res.FailedAgain}, [2]int{1, 0}, "%+v", res)
}

func TestAWatchedReplayWithoutADaemonDoesNotWait(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 3)
	w.replay(all, deadletter.ReplayOptions{Window: 500}, "replayed 3, unsettled 3")
	w.WantQueues(3, 0)
}

func TestAnInterruptedWaitLeavesWhatWasNotReplayed(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 30)
	ctx, cancel := context.WithCancel(t.Context())
	// given no daemon, so that the window stays full
	res, err := w.letters().Replay(ctx, all, deadletter.ReplayOptions{By: "tester", Window: 10,
		Progress: func(p deadletter.Progress) {
			if p.Waiting == 10 {
				cancel()
			}
		}})
	assert.Error(t, err, context.Canceled, "Replay")
	assert.Is(t, [3]int{res.Replayed, res.Unseen, len(res.Left)}, [3]int{10, 20, 0}, "%+v", res)
	w.WantQueues(10, 20)
}

func TestARateBoundsHowFastLettersGo(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 12)
	began := time.Now()
	w.replay(all, deadletter.ReplayOptions{Rate: 10}, "replayed 12")
	// the first goes at once, each further one at least a tenth of a second later; a slow machine only makes it slower
	assert.AtLeast(t, time.Since(began), time.Second, "it took")
	w.WantQueues(12, 0)
}

func TestARunThatTakesLongGivesBackWhatItHoldsAndGoesOn(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonPermanent, names("other", 300)...)
	w.deadMany(dedup.ReasonExhausted, 600)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	late := sync.OnceFunc(func() { w.letter("late") })
	var last deadletter.Progress
	res := require.Get(letters.Replay(t.Context(), ofReason(dedup.ReasonExhausted), deadletter.ReplayOptions{
		By: "tester", Progress: func(p deadletter.Progress) { late(); last = p }, // which is not of this run
	}))(t)
	assert.Is(t, last, deadletter.Progress{Seen: 900, Found: 900, Done: 600}, "progress ends at")
	w.wantTally(res, "replayed 600, not selected 300")
	assert.Is(t, res.Seen, 900, "seen")
	w.WantQueues(600, 301)
}

func TestAKeyThatWasFoundBeforeTheRunGaveBackWhatItHeldIsNotMissing(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 450)
	letters := w.letters()
	letters.Hold(time.Nanosecond) // after every window
	// given two keys that are far apart, and one that no letter has
	res, err := letters.Replay(t.Context(), byKeys("k-00001", "k-00449", "nobody's"),
		deadletter.ReplayOptions{By: "tester"})
	assert.That(t, err == nil && res.Replayed == 2 && slices.Equal(res.NotFound, []string{"nobody's"}),
		"%+v, %v; want two replayed and nobody's missing", res, err)
	w.WantQueues(2, 448)
}

func TestNonsenseOptionsAreRefused(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "k")
	for _, o := range []deadletter.ReplayOptions{{Rate: -1}, {Window: -1}, {Window: deadletter.MaxWindow + 1},
		{MaxFailures: -1, Window: 1}, {MaxFailures: 3}} {
		_, err := w.tries(all, o)
		assert.That(t, err != nil, "%+v was taken", o)
	}
	for _, f := range []deadletter.Filter{{}, {Limit: 3}} {
		_, err := w.tries(f, plain)
		assert.Error(t, err, deadletter.ErrNoFilter, "Replay(%+v)", f)
	}
	w.WantQueues(0, 1)
	assert.Is(t, w.Row("k").Status, dedup.Dead, "row")
}

// cured runs an engine whose handler refuses nothing.
func (w *world) cured() { w.T.Helper(); w.engineThat(true) }

// engine runs one whose handler refuses everything for good until cured.
func (w *world) engine() (cured *atomic.Bool) { w.T.Helper(); return w.engineThat(false) }

func (w *world) engineThat(accepts bool) (cured *atomic.Bool) {
	w.T.Helper()
	cured = new(atomic.Bool)
	cured.Store(accepts)
	w.Exec("CREATE TABLE effect (k VARBINARY(255) NOT NULL) ENGINE=InnoDB")
	w.Consume(consumer.Each(func(_ context.Context, tx *gorm.DB, m consumer.Message) error {
		if !cured.Load() {
			return consumer.Permanent(errors.New("shelf is locked"))
		}
		return tx.Exec("INSERT INTO effect (k) VALUES (?)", m.Key).Error
	}))
	return cured
}

// effects counts the rows of effect, and the different keys in it.
func (w *world) effects() (all, different int) {
	w.T.Helper()
	return w.Number("SELECT COUNT(*) FROM effect"), w.Number("SELECT COUNT(DISTINCT k) FROM effect")
}

func (w *world) wantEffects(n int) {
	w.T.Helper()
	w.Eventually("all effects", func() (string, bool) {
		all, different := w.effects()
		return "", all >= n && different >= n
	})
	all, different := w.effects()
	assert.That(w.T, all == n && different == n, "%d effects on %d keys, want %d on %d", all, different, n, n)
}

// drained replays all until no letter is left.
func (w *world) drained() {
	w.T.Helper()
	w.Eventually("an empty dead-letter queue", func() (string, bool) {
		w.replay(all, plain)
		return "letters", w.Broker.Depth(rabbit.DeadQueue(w.Queue)) == 0
	})
}

func TestALetterThatComesBackIsNotTakenAgain(t *testing.T) {
	const n = 500
	w := newWorld(t).deadMany(dedup.ReasonPermanent, n)
	// given a daemon whose handler still refuses everything
	cured := w.engine()
	w.replay(all, plain, "replayed 500")
	// then each came back as a letter, replayed once
	w.WantQueues(0, n)
	w.wantStatus(dedup.Dead, 1, n)
	// when the cause is mended
	cured.Store(true)
	w.replay(all, plain)
	w.wantEffects(n)
	w.WantQueues(0, 0)
	w.wantStatus(dedup.Success, 2, n)
}

func (w *world) wantStatus(status dedup.Status, replays, n int) {
	w.T.Helper()
	w.Eventually("rows "+status.String(), func() (string, bool) {
		have := w.Number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = ? AND replays = ?", int(status), replays)
		return fmt.Sprint(have), have == n
	})
}

// Given hundreds of letters and stale ones among them, when three replays take them at once and two die half-way,
// then every letter has one effect.
func TestEveryLetterHasOneEffectWhateverIsReplayed(t *testing.T) {
	const n = 400
	w := newWorld(t).deadMany(dedup.ReasonExhausted, n)
	for _, key := range names("k", 60) { // as crashes between letter and row leave them
		w.letter(key)
	}
	w.cured()
	var runs sync.WaitGroup
	for range 3 {
		letters := w.letters()
		w.killAt(deadletter.PointPublished) // the next ones die half-way
		runs.Go(func() {
			_, _ = letters.Replay(t.Context(), all, deadletter.ReplayOptions{By: "tester"}) // that some end early is the point
		})
	}
	runs.Wait()
	w.hook = nil
	w.drained()
	w.wantEffects(n)
}
