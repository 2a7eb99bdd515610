package dedup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func testHealth(log *lockLog, policy LockPolicy) *lockHealth {
	h := &lockHealth{}
	h.init(RedisLockOptions{Log: slog.New(slog.NewTextHandler(log, nil)), OnError: policy})
	return h
}

func TestLocksAreRenewedAtEveryThirdOfTheTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl = 9 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		h, start := testHealth(&lockLog{}, LockProceed), time.Now()
		var renewals []time.Duration
		probes := 0

		keepLock(ctx, h, ttl/3,
			func(context.Context) error { probes++; return nil },
			func(context.Context) error { renewals = append(renewals, time.Since(start)); return nil })

		if want := []time.Duration{0, ttl / 3, 2 * ttl / 3, ttl}; !slices.Equal(renewals, want) {
			t.Errorf("renewed at %v, want %v", renewals, want)
		}
		if probes != 1 {
			t.Errorf("a healthy redis was probed %d times, want once, at the start", probes)
		}
	})
}

func TestDeadRedisIsProbedWithGrowingJitteredDelays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log := &lockLog{}
		h, down := testHealth(log, LockPause), errors.New("connection refused")
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
		if got := h.down(); !errors.Is(got, down) {
			t.Errorf("after the first probe down = %v, want %v", got, down)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if h.down() != nil || renewals == 0 {
			t.Errorf("redis answers again: down = %v with %d renewals", h.down(), renewals)
		}
		cancel()
		<-done

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
		if len(slices.Compact(slices.Clone(gaps[12:]))) < 2 {
			t.Errorf("delays without jitter: %v", gaps[12:])
		}
		if lost, back := log.count("redis failed: nothing is consumed"), log.count("redis answers again"); lost != 1 || back != 1 {
			t.Errorf("the log tells %d losses and %d returns, want one of each", lost, back)
		}
	})
}

func TestFailureOfALaneIsProbedAtOnceAndNotAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h := testHealth(&lockLog{}, LockProceed)
		done := make(chan struct{})
		none := func(context.Context) error { return nil }
		go func() { defer close(done); keepLock(ctx, h, time.Hour, none, none) }()
		synctest.Wait()

		h.fail(errors.New("reset by peer"))
		h.fail(errors.New("reset by peer")) // of another lane
		time.Sleep(time.Second)
		synctest.Wait()
		if err := h.down(); err != nil {
			t.Errorf("a second after the failure redis is still not asked: %v", err)
		}
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
		h := testHealth(log, LockProceed)
		keepLock(ctx, h, time.Second,
			func(context.Context) error { return nil },
			func(context.Context) error { return errors.New("oom") })
		if n := log.count("redis failed"); n < 10 || n > 60 {
			t.Errorf("%d changes in two minutes, want few", n)
		}
	})
}

func TestForgottenLockIsNotRenewedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r renewer
		r.init(time.Minute)
		keys, mine := []LockKey{{"one"}, {"two"}}, []Held{{Hold: Mine}, {Hold: Mine}}
		r.add("a", keys, mine)
		time.Sleep(40 * time.Second)
		r.add("a", keys[:1], mine) // again, with the same token: as old as before
		r.add("b", keys[1:], mine) // expired meanwhile, and another lane's now: new
		if due, _, stale := r.due(); len(due) != 2 || stale != 0 {
			t.Errorf("after 40s due = %v, %d stale, want both keys", due, stale)
		}
		time.Sleep(30 * time.Second)
		due, values, stale := r.due()
		if !slices.Equal(due, keys[1:]) || !slices.Equal(values, []string{"b"}) || stale != 1 {
			t.Errorf("after 70s due = %v with %v, %d stale, want two with b and 1", due, values, stale)
		}
	})
}
