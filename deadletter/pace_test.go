package deadletter

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
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

// Given letters that came, then more and more are taken together while they are small, as many as go in a minute with a
// low rate, and a window of them where a limit, a rate or the daemon bounds how many may go.
func TestAHandfulGrowsWithTheSmallLettersThatCame(t *testing.T) {
	for name, c := range map[string]struct {
		of         Filter
		o          ReplayOptions
		came, each int // letters, and the bytes of a body
		seconds    int // since the run began
		want       int // letters
	}{
		"at first":      {Filter{All: true}, ReplayOptions{}, 0, 0, 1, 500},
		"some":          {Filter{All: true}, ReplayOptions{}, 1000, 100, 1, 500},
		"many":          {Filter{All: true}, ReplayOptions{}, 3000, 100, 1, 1500},
		"very many":     {Filter{All: true}, ReplayOptions{}, 100_000, 100, 1, 4000},
		"of 4 KiB":      {Filter{All: true}, ReplayOptions{}, 100_000, 4 << 10, 1, 1024},
		"slow":          {Filter{All: true}, ReplayOptions{}, 110_000, 100, 1000, 1099},
		"very slow":     {Filter{All: true}, ReplayOptions{}, 100_000, 100, 100_000, 500},
		"large":         {Filter{All: true}, ReplayOptions{}, 100_000, 256 << 10, 1, 500},
		"empty":         {Filter{All: true}, ReplayOptions{}, 3000, 0, 1, 1500},
		"a limit":       {Filter{All: true, Limit: 50_000}, ReplayOptions{}, 3000, 100, 1, 500},
		"a rate":        {Filter{All: true}, ReplayOptions{Rate: 100}, 3000, 100, 1, 500},
		"a low rate":    {Filter{All: true}, ReplayOptions{Rate: 0.1}, 3000, 100, 1, 6},
		"looked after":  {Filter{All: true}, ReplayOptions{Window: 500}, 3000, 100, 1, 500},
		"by themselves": {Filter{All: true, due: func(dedup.Row) bool { return true }}, ReplayOptions{}, 3000, 100, 1, 500},
		"a dry run":     {Filter{All: true}, ReplayOptions{DryRun: true}, 3000, 100, 1, 1500},
	} {
		r := newRun(&Letters{}, c.of, c.o)
		r.choose(c.of)
		r.began = time.Now().Add(-time.Duration(c.seconds) * time.Second)
		r.queue, r.tally.Seen = &queue{read: c.came, bytes: c.came * c.each}, c.came
		if have := (&queueSource{run: r}).handful(); have != c.want {
			t.Errorf("%s: %d letters are taken together, want %d", name, have, c.want)
		}
	}
}
