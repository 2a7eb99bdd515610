package deadletter

import (
	"context"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// longestPace bounds the time between two letters, however small the rate is: a time that no clock holds would be none.
const longestPace = 24 * time.Hour

// pace says how many letters may go, and when.
type pace struct {
	*run
	watch *watch
	next  time.Time // when the rate allows the next letters
}

// turn waits until some of want letters may go, by the rate and by what is watched, and says how many.
func (p *pace) turn(ctx context.Context, want int) (n int, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if n, err = p.watch.room(ctx, want); err != nil || p.o.Rate == 0 || p.o.DryRun {
		return n, err
	}
	n = min(n, max(1, int(min(p.o.Rate/4, window)))) // what goes in a quarter of a second
	for now := time.Now(); p.next.After(now); now = time.Now() {
		p.tally.report()
		if err := wait.For(ctx, min(p.next.Sub(now), consumersEvery)); err != nil {
			return 0, err
		}
	}
	p.next = time.Now().Add(time.Duration(min(float64(n)/p.o.Rate, longestPace.Seconds()) * float64(time.Second)))
	return n, nil
}
