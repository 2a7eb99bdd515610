package lock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// lockLog is what was logged.
type lockLog struct{ strings.Builder }

func (l *lockLog) count(words string) int { return strings.Count(l.String(), words) }

func testHealth(log *lockLog, policy Policy) *health {
	h := &health{}
	h.init("redis", Options{Log: slog.New(slog.NewTextHandler(log, nil)), OnError: policy})
	return h
}

func TestLocksAreRenewedAtEveryThirdOfTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 9 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		h, start := testHealth(&lockLog{}, Proceed), time.Now()
		var renewals []time.Duration
		probes := 0

		keepLock(ctx, h, ttl/3,
			func(context.Context) error { probes++; return nil },
			func(context.Context) error { renewals = append(renewals, time.Since(start)); return nil })

		assert.Equal(t, renewals, []time.Duration{0, ttl / 3, 2 * ttl / 3, ttl}, "renewed at")
		assert.Is(t, probes, 1, "a healthy redis was probed times")
	})
}

func TestDeadRedisIsProbedWithGrowingJitteredDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &lockLog{}
		h, down := testHealth(log, Pause), errors.New("connection refused")
		var probes []time.Time
		renewals := 0

		done := make(chan struct{})
		go func() {
			defer close(done)
			keepLock(ctx, h, time.Second, func(context.Context) error {
				if probes = append(probes, time.Now()); len(probes) <= 20 {
					return down
				}
				return nil
			}, func(context.Context) error { renewals++; return nil })
		}()
		synctest.Wait()
		assert.Error(t, h.down(), down, "after the first probe down")
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if h.down() != nil || renewals == 0 {
			t.Errorf("redis answers again: down = %v with %d renewals", h.down(), renewals)
		}
		seen := len(probes)
		h.fail(down)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.That(t, h.down() == nil, "after minutes of health a new failure is probed as late as the old ones were")
		cancel()
		<-done
		probes = probes[:seen]

		var gaps []time.Duration
		for i := range probes[1:] {
			gaps = append(gaps, probes[i+1].Sub(probes[i]))
		}
		if first := gaps[0]; first < firstProbe/2 || first > 2*firstProbe {
			t.Errorf("the second probe came after %v, want about %v", first, firstProbe)
		}
		if longest := slices.Max(gaps); longest < lastProbe/2 || longest > 2*lastProbe {
			t.Errorf("the longest delay was %v, want about %v", longest, lastProbe)
		}
		assert.AtLeast(t, len(slices.Compact(slices.Clone(gaps[12:]))), 2, "delays without jitter: %v", gaps[12:])
		lost, back := log.count("redis failed: nothing is consumed"), log.count("redis answers again")
		assert.That(t, lost == 2 && back == 2, "the log tells %d losses and %d returns, want two of each", lost, back)
	})
}

func TestFailureOfALaneIsProbedAtOnceAndNotAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := testHealth(&lockLog{}, Proceed)
		done := make(chan struct{})
		none := func(context.Context) error { return nil }
		go func() { defer close(done); keepLock(ctx, h, time.Hour, none, none) }()
		synctest.Wait()

		h.fail(errors.New("reset by peer"))
		h.fail(errors.New("reset by peer")) // of another lane
		time.Sleep(time.Second)
		synctest.Wait()
		assert.OK(t, h.down(), "a second after the failure redis is still not asked:")
		cancel()
		<-done
	})
}

// A Redis that answers probes and fails at work must not be switched on and off ten times a second.
func TestRedisThatFailsAtOnceAgainIsLeftAloneForLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		log := &lockLog{}
		h := testHealth(log, Proceed)
		keepLock(ctx, h, time.Second,
			func(context.Context) error { return nil },
			func(context.Context) error { return errors.New("oom") })
		n := log.count("redis failed")
		assert.That(t, n >= 10 && n <= 60, "%d changes in two minutes, want few", n)
	})
}

func TestForgottenLockIsNotRenewedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r renewer
		r.init(time.Minute)
		names, mine := []Name{{"one"}, {"two"}}, []Held{{Hold: Mine}, {Hold: Mine}}
		r.add("a", names, mine)
		time.Sleep(40 * time.Second)
		r.add("a", names[:1], mine) // again, with the same token: as old as before
		r.add("b", names[1:], mine) // expired meanwhile, and another lane's now: new
		if due, _, over, tooLong := r.due(); len(due) != 2 || len(over) != 0 || tooLong != 0 {
			t.Errorf("after 40s due = %v, over %v, want both keys due", due, over)
		}
		time.Sleep(30 * time.Second)
		due, values, over, tooLong := r.due()
		assert.That(t, slices.Equal(due, names[1:]) && slices.Equal(values, []string{"b"}) && len(over["a"]) == 1 &&
			tooLong == 1, "after 70s due = %v with %v, over %v, want two with b, and one over", due, values, over)
	})
}

func TestStoppingIsNoFailureOfRedis(t *testing.T) {
	t.Parallel()
	untilStopped := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	none := func(context.Context) error { return nil }
	for what, during := range map[string]struct{ probe, renew func(context.Context) error }{
		"probe": {untilStopped, none}, "renewal": {none, untilStopped},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			log := &lockLog{}
			h := testHealth(log, Proceed)
			keepLock(ctx, h, time.Second, during.probe, during.renew)
			if h.down() != nil || log.Len() != 0 {
				t.Errorf("stopped during a %s: down = %v, the log says %q", what, h.down(), log)
			}
		})
	}
}

// Given a server that is away for five minutes, then the log has a line at the beginning with what to do, one a minute,
// and one at the end.
func TestALockThatIsAwayIsALineAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &lockLog{}
		h := testHealth(log, Proceed)
		for range 500 {
			h.fail(errors.New("refused"))
			time.Sleep(600 * time.Millisecond)
		}
		h.recover()
		first, still, end := log.count("redis failed"), log.count("still away"), log.count("answers again")
		assert.That(t, first == 1 && still == 4 && end == 1, "the log has %d, %d and %d lines, want 1, 4 and 1", first,
			still, end)
	})
}
