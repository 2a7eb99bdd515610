package deadletter

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// Given a rate so small, or so large, that no clock holds the time between two letters, then a small one is as slow as
// can be and not without any limit, and a large one is fast.
func TestARateThatNoClockHoldsIsKeptAllTheSame(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		waits bool
	}{{math.SmallestNonzeroFloat64, true}, {1e-12, true}, {1e300, false}, {math.MaxFloat64, false}} {
		synctest.Test(t, func(t *testing.T) {
			p := newRun(&Letters{}, Filter{All: true}, ReplayOptions{Rate: c.rate}).watch
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if n, err := p.turn(ctx, 10); err != nil || n < 1 {
				t.Fatalf("at %v the first turn is of %d letters, %v", c.rate, n, err)
			}
			n, err := p.turn(ctx, 10)
			if waited := errors.Is(err, context.DeadlineExceeded); waited != c.waits || !waited && n != 10 {
				t.Errorf("at %v the second turn is of %d letters, %v; want it to wait: %v", c.rate, n, err, c.waits)
			}
		})
	}
}
