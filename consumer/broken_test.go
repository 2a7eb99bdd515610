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
)

// broken is a deployment whose handler fails, until it is mended.
type broken struct{ mended atomic.Bool }

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

// breaks makes the world's handler fail, each message by itself.
func (w *world) breaks(fail func(i int) error) *broken {
	var b broken
	handle := w.handler
	w.handler = consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		if b.mended.Load() {
			return handle.Handle(ctx, tx, msgs)
		}
		return blaming(msgs, func(m consumer.Message) error {
			n := 0
			_, _ = fmt.Sscanf(m.Key, "order-%d", &n)
			return fail(n)
		})
	})
	return &b
}

// breaksCalls makes calls that fail, until they are mended.
func (w *world) breaksCalls(fail func(i int) error) *broken {
	var b broken
	service := w.calling(consumer.CallOptions{})
	service.answering(func(_ context.Context, m consumer.Message) error {
		if b.mended.Load() {
			return nil
		}
		n := 0
		_, _ = fmt.Sscanf(m.Key, "order-%d", &n)
		return fail(n)
	})
	return &b
}

// starts starts daemons side by side.
func (w *world) starts(n int) (all []*running) {
	for range n {
		all = append(all, w.start())
	}
	return all
}

// braked waits until the brake holds all of them.
func (w *world) braked(all []*running) {
	w.t.Helper()
	for _, r := range all {
		w.paused(r, "max_dead_rate")
	}
}

// Given many messages and a deployment that fails all of them, in whatever way, when one daemon or four take them, then
// the fleet publishes no more letters than one window allows, most messages keep their attempts, and each daemon says
// that the brake holds it.
func TestABrokenDeploymentStopsAtTheFleetsLimit(t *testing.T) {
	t.Parallel()
	for kind, fail := range fails {
		for _, daemons := range []int{1, 4} {
			for way, breaks := range map[string]func(*world, func(int) error) *broken{
				"transactions": (*world).breaks, "calls": (*world).breaksCalls,
			} {
				t.Run(fmt.Sprintf("%s, %s, %d", kind, way, daemons), func(t *testing.T) {
					const messages, limit = 2000, 20
					w := newWorld(t)
					w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = limit, time.Hour, time.Hour
					w.cfg.MaxAttempts = 5
					w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond,
						300 * time.Millisecond, 400 * time.Millisecond}
					breaks(w, fail)
					w.publish("{}", keys("order", messages)...)
					w.braked(w.starts(daemons))
					w.eventually("the retries that were on their way are back", func() bool {
						return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 0") == 0
					})
					if dead := w.dead(); dead > limit {
						t.Errorf("%d letters, want at most %d", dead, limit)
					}
					if n := w.number("SELECT COALESCE(SUM(consumer_times), 0) FROM consumer_log"); n > messages {
						t.Errorf("%d attempts for %d messages: it is not braked", n, messages)
					}
				})
			}
		}
	}
}

// Given messages that come one after the other, two a window's limit in each second, when a deployment fails all of
// them and that lasts for more than all delays together, then no more letters are published than windows allow.
func TestASteadyFlowThatFailsOrdinarilyIsBraked(t *testing.T) {
	w := newWorld(t) // the defaults, ten times as fast: 100/60s, 20 a second for 260 seconds
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 20, 6*time.Second, time.Hour
	w.cfg.MaxAttempts = 5
	w.cfg.RetryDelays = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second, 12 * time.Second}
	w.breaks(fails["ordinary"])
	r := w.start()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for i := range 26 * 4 {
		<-tick.C
		w.publish("{}", keys(fmt.Sprintf("order-%d", i), 10)...)
	}
	w.paused(r, "max_dead_rate")
	if dead := w.dead(); dead > 20 {
		t.Errorf("%d letters, want at most 20", dead)
	}
}

// Given a broken deployment whose attempts are spaced out, when it is mended, then it goes on by itself with all
// messages, and says so.
func TestAMendedDeploymentGoesOnByItself(t *testing.T) {
	t.Parallel()
	for way, breaks := range map[string]func(*world, func(int) error) *broken{
		"transactions": (*world).breaks, "calls": (*world).breaksCalls,
	} {
		t.Run(way, func(t *testing.T) {
			const messages = 400
			w := newWorld(t)
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 20, time.Minute, 2*time.Second
			b := breaks(w, fails["ordinary"])
			r := w.startWith(keys("order", messages)...)
			w.paused(r, "max_dead_rate")
			attempts := func() int { return w.number("SELECT COALESCE(SUM(consumer_times), 0) FROM consumer_log") }
			before := attempts()
			w.eventually("it has tried again", func() bool { return attempts() > before })
			if !waitsFor(r, "max_dead_rate") {
				t.Error("it does not say so while it tries")
			}
			b.mended.Store(true)
			w.eventually("all have ended", func() bool {
				return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)") == messages
			})
			w.recovered(r)
			if dead := w.dead(); dead > 20 {
				t.Errorf("%d letters, want at most 20", dead)
			}
		})
	}
}

// Given messages of which one in five fails for good or again and again, more than a window's limit, when they are
// worked off among healthy ones, then nothing brakes.
func TestFailuresAmongHealthyMessagesDoNotBrake(t *testing.T) {
	t.Parallel()
	for kind, fail := range fails {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 10, time.Hour, time.Hour
			all := keys("order", 1000)
			for i, k := range all {
				if i%5 == 0 {
					w.rejecting(k, func() error { return fail(i / 5) })
				}
			}
			r := w.startWith(all...)
			w.eventually("all have ended", func() bool {
				if waitsFor(r, "max_dead_rate") {
					t.Fatal("it braked")
				}
				return w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)") == len(all)
			})
		})
	}
}

// Given a queue with nothing but one bad message, then it gets its attempts at their delays and dies, and nothing
// brakes.
func TestOneBadMessageOnAnIdleQueueDoesNotBrake(t *testing.T) {
	w := newWorld(t)
	w.cfg.MaxDead, w.cfg.MaxDeadWindow, w.cfg.BrakePause = 1, time.Hour, time.Hour
	w.rejecting("bad", func() error { return errors.New("no stock") })
	r := w.startWith("bad")
	began := time.Now()
	w.ended(dedup.Dead, "bad")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it died after %v, its delays are 400 ms", took)
	}
	if waitsFor(r, "max_dead_rate") {
		t.Error("it brakes")
	}
}
