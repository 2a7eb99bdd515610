package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// fails are the ways in which a deployment fails for every message, by name.
var fails = map[string]func(i int) error{
	"ordinary":  func(int) error { return errors.New("no such column") },
	"permanent": func(int) error { return consumer.Permanent(errors.New("no such column")) },
	"mixed": func(i int) error {
		if i%4 == 0 {
			return consumer.Permanent(errors.New("no such column"))
		}
		return errors.New("no such column")
	},
}

// breaks makes the world's handler fail, or its calls, each message by itself, until that is mended.
func (w *world) breaks(kind string, calls bool) (mended *atomic.Bool) {
	mended = new(atomic.Bool)
	failing := func(m consumer.Message) error {
		n := 0
		_, _ = fmt.Sscanf(m.Key, "order-%d", &n)
		if mended.Load() {
			return nil
		}
		return fails[kind](n)
	}
	if calls {
		w.calling(consumer.CallOptions{}).answering(func(_ context.Context, m consumer.Message) error { return failing(m) })
	} else {
		w.batch(func(_ *gorm.DB, msgs []consumer.Message) error { return blaming(msgs, failing) })
	}
	return mended
}

// spent is how many attempts there were in all.
func (w *world) spent() int {
	w.t.Helper()
	return w.number("SELECT COALESCE(SUM(consumer_times), 0) FROM consumer_log")
}

// over is how many messages have ended.
func (w *world) over() int {
	w.t.Helper()
	return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)")
}

// Given many messages and a deployment that fails all of them, in whatever way, when one daemon or four take them, then
// the fleet publishes no more letters than one window allows, most messages keep their attempts, and each daemon says
// that the brake holds it.
func TestABrokenDeploymentStopsAtTheFleetsLimit(t *testing.T) {
	type one struct {
		kind    string
		calls   bool
		daemons int
	}
	each(t, named(one{"ordinary", false, 4}, one{"ordinary", true, 1}, one{"permanent", false, 1},
		one{"permanent", true, 4}, one{"mixed", false, 4}, one{"mixed", true, 1}), func(t *testing.T, w *world, tc one) {
		const messages, limit = 1000, 20
		w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = limit, time.Hour, time.Hour
		w.cfg.MaxAttempts = 5
		w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond,
			400 * time.Millisecond}
		w.breaks(tc.kind, tc.calls)
		w.publish("{}", keys("order", messages)...)
		var fleet []*running
		for range tc.daemons {
			fleet = append(fleet, w.start())
		}
		for _, r := range fleet {
			w.paused(r, "max_dead_rate")
		}
		w.eventually("the retries that were on their way are back", func() bool {
			return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0") == 0
		})
		assert.AtMost(t, w.dead(), limit, "letters")
		assert.AtMost(t, w.spent(), messages, "attempts for messages: it is not braked")
	})
}

// Given messages that come one after the other, many times a window's limit, when a deployment fails all of them and
// that lasts for more than all delays together, then no more letters are published than windows allow.
func TestASteadyFlowThatFailsOrdinarilyIsBraked(t *testing.T) {
	w := newWorld(t) // the defaults, thirty times as fast
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 20, 2*time.Second, time.Hour
	w.cfg.MaxAttempts = 5
	w.cfg.RetryDelays = []time.Duration{30 * time.Millisecond, 160 * time.Millisecond, time.Second, 4 * time.Second}
	w.breaks("ordinary", false)
	r := w.start()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := range 9 * 4 {
		<-tick.C
		w.publish("{}", keys(fmt.Sprintf("order-%d", i), 30)...)
	}
	w.paused(r, "max_dead_rate")
	assert.AtMost(t, w.dead(), 20, "letters")
}

// Given a broken deployment whose attempts are spaced out, or whose letters are held back, when it is mended, then it
// goes on by itself with all messages; until then it says so, and tries from time to time.
func TestAMendedDeploymentGoesOnByItself(t *testing.T) {
	type one struct {
		kind  string
		calls bool
		dead  int // at most: a window's limit, or several
	}
	each(t, named(one{"ordinary", false, 20}, one{"ordinary", true, 20}, one{"permanent", false, 80}),
		func(t *testing.T, w *world, tc one) {
			const messages = 300
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 20, time.Minute, 2*time.Second
			mended := w.breaks(tc.kind, tc.calls)
			r := w.startWith(keys("order", messages)...)
			w.paused(r, "max_dead_rate")
			is(w, "rollbackd_paused", w.counts("rollbackd_paused")["max_dead_rate"], 1)
			assert.AtMost(t, w.dead(), 20, "letters before the pause")
			before := w.spent()
			w.eventually("it has tried again", func() bool { return w.spent() > before })
			w.paused(r, "max_dead_rate")
			mended.Store(true)
			w.eventually("all have ended", func() bool { return w.over() == messages })
			w.recovered(r)
			if dead := w.dead(); dead > tc.dead {
				t.Errorf("%d letters, want at most %d", dead, tc.dead)
			}
		})
}

// Given messages of which one in five fails for good or again and again, more than a window's limit, when they are
// worked off among healthy ones, then nothing brakes.
func TestFailuresAmongHealthyMessagesDoNotBrake(t *testing.T) {
	each(t, fails, func(t *testing.T, w *world, fail func(int) error) {
		w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 10, time.Hour, time.Hour
		all := keys("order", 300)
		for i, k := range all {
			if i%5 == 0 {
				w.rejecting(k, func() error { return fail(i / 5) })
			}
		}
		r := w.startWith(all...)
		w.eventually("all have ended", func() bool { return w.over() == len(all) || waitsFor(r, "max_dead_rate") })
		is(w, "messages that have ended", w.over(), len(all))
	})
}

// Given a queue with nothing but one bad message, then it gets its attempts at their delays and dies, and nothing
// brakes.
func TestOneBadMessageOnAnIdleQueueDoesNotBrake(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Hour, time.Hour
	w.failing("bad")
	r := w.startWith("bad")
	w.ended(dedup.Dead, "bad")
	if waitsFor(r, "max_dead_rate") {
		t.Error("it brakes")
	}
}

// Given claims whose letters the brake holds back, when it pauses for much longer than a lease, then they are given
// back before that.
func TestTheBrakesDebtsArePaidBeforeItsPause(t *testing.T) {
	w := newWorld(t)
	w.hasty()
	w.oneBatch(40)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Minute, time.Hour
	all := keys("order", 40)
	w.failedOnce(all...)
	w.breaks("permanent", false)
	r := w.startWith(all...)
	w.paused(r, "max_dead_rate")
	w.eventually("nothing is claimed", func() bool {
		return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0") == 0
	})
	if !waitsFor(r, "max_dead_rate") {
		t.Error("the pause is over")
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND owner IS NOT NULL AND " +
		"consumer_times = 1"); n == 0 {
		t.Error("no claim was given back: the brake held no letter of one")
	}
}
