package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

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

		keepLock(ctx, h, ttl/3, func(context.Context) error { probes++; return nil },
			func(context.Context) error { renewals = append(renewals, time.Since(start)); return nil })

		assert.Equal(t, renewals, []time.Duration{0, ttl / 3, 2 * ttl / 3, ttl}, "renewed at")
		assert.Is(t, probes, 1, "a healthy redis was probed times")
	})
}

// Given a server that is away for minutes, then it is probed less and less often, and the log has a line at the
// beginning, one a minute, and one at the end. When a lane meets a failure after that, then it is probed soon, and not
// at the next renewal.
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
			keepLock(ctx, h, time.Hour, func(context.Context) error {
				if probes = append(probes, time.Now()); len(probes) <= 80 {
					return down
				}
				return nil
			}, func(context.Context) error { renewals++; return nil })
		}()
		synctest.Wait()
		assert.Error(t, h.down(), down, "after the first probe down")
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		assert.That(t, h.down() == nil && renewals != 0, "redis answers again: down = %v, %d renewals", h.down(), renewals)
		seen := len(probes)
		h.fail(down)
		h.fail(down) // of another lane
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
		for gap, about := range map[time.Duration]time.Duration{gaps[0]: firstProbe, slices.Max(gaps): lastProbe} {
			assert.That(t, gap >= about/2 && gap <= 2*about, "the first or longest delay was %v, want about %v", gap, about)
		}
		assert.AtLeast(t, len(slices.Compact(slices.Clone(gaps[12:]))), 2, "delays without jitter: %v", gaps[12:])
		away, still := probes[80].Sub(probes[0]), log.count("redis is still away")
		assert.AtMost(t, still, int(away/stillEvery), "away for %v: lines", away)
		assert.AtLeast(t, still, int(away/(stillEvery+2*lastProbe)), "away for %v: lines", away)
		lost, back := log.count("redis failed: nothing is consumed"), log.count("redis answers again")
		assert.That(t, lost == 2 && back == 2, "the log tells %d losses and %d returns, want two of each", lost, back)
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
		keepLock(ctx, h, time.Second, func(context.Context) error { return nil },
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
			assert.That(t, h.down() == nil && log.Len() == 0, "stopped in a %s: down = %v, the log says %q", what, h.down(), log)
		})
	}
}

func TestNoneFindsEveryNameFree(t *testing.T) {
	t.Parallel()
	var l Locker = None{}
	names := []Name{NameOf("s", "g", "t", "one"), NameOf("s", "g", "t", "two")}
	for _, token := range []string{"a", "b"} {
		held := require.Get(l.Lock(t.Context(), token, names))(t)
		assert.That(t, held[0].Hold == Mine && held[1].Hold == Mine, "%s finds %v, want both its own", token, held)
		require.OK(t, l.Done(t.Context(), []Mark{{Name: names[0]}}))
	}
	require.OK(t, l.Release(t.Context(), "a", names))
	s, err := l.Show(t.Context(), names[0])
	assert.That(t, err == nil && s.Hold == 0, "Show = %+v, %v, want it free", s, err)
	up, _, cause := l.Up()
	assert.That(t, !up && cause == nil && l.Attempts(ResultMine) == 0,
		"Up = %v, %v with %d attempts, want that nobody is asked and nothing is wrong", up, cause, l.Attempts(ResultMine))
}

func TestNameIsOfTheSchemaAndTheWholeIdentity(t *testing.T) {
	t.Parallel()
	// The form is fixed: while a fleet is upgraded, old and new daemons must meet at the same key.
	const want = "rollbackd:HCx_2_Xq6Z4zrf9bkeo9F4C4mgywebjT_hYrWNa5pVY"
	first := NameOf("8f14e45f-ceea-467f-a123-6d9d5d2b9c11", "stock-rollback", "cancelled", "20261121-0001")
	assert.Is(t, first.String(), want, "NameOf = %q", first)
	seen := map[Name]string{}
	for _, parts := range [][4]string{
		{"s", "g", "t", "k"}, {"S", "g", "t", "k"}, {"s", "G", "t", "k"}, {"s", "g", "T", "k"}, {"s", "g", "t", "K"},
		{"sg", "t", "k", ""}, {"s", "gt", "k", ""}, {"s", "g", "tk", ""}, {"s", "g", "", "tk"}, {"", "sg", "t", "k"},
		{"s", "g", "t", "k "}, {"s", "g", "t", "k\x00"}, {"s", "g", "t", "é"}, {"s", "g", "t", "e\u0301"},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 255)},
		{"s", strings.Repeat("g", 100), strings.Repeat("t", 100), strings.Repeat("k", 2000)},
	} {
		n := NameOf(parts[0], parts[1], parts[2], parts[3])
		before, ok := seen[n]
		assert.That(t, !ok, "%q and %s share the name %v", parts, before, n)
		seen[n] = fmt.Sprintf("%q", parts)
	}
	// without a schema the locks of two installations on one server would meet
	if n := NameOf("", "g", "t", "k"); n != (Name{}) || n.Check() == nil {
		t.Errorf("NameOf without a schema = %v, Check = %v, want the zero name, refused", n, n.Check())
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]Options{
		"lock TTL":    {LockTTL: -time.Second},
		"done TTL":    {DoneTTL: -1},
		"timeout":     {Timeout: -1},
		"renewed for": {MaxHold: time.Second},
		"policy":      {OnError: "hope"},
	} {
		if _, err := NewRedis(nil, o); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("NewRedis(%+v) = %v, want an error about the %s", o, err, what)
		}
	}
}
