package shovel

import (
	"context"
	"time"
)

// pace says how many messages may go, and when. The zero value lets them go as they come.
type pace struct {
	rate float64   // messages per second; 0: no limit
	next time.Time // when the next ones may go
}

// prefetch is how many messages may be in hand: with a rate, what goes in two seconds. The others stay in the reach of
// the queue's other consumers.
func (p *pace) prefetch() int {
	if p.rate == 0 {
		return prefetch
	}
	return int(min(max(1, 2*p.rate), prefetch))
}

// turn waits until messages may go and says how many: with a rate, what goes in a quarter of a second. rest lets time
// pass and ends early when there is nothing more to wait for.
func (p *pace) turn(ctx context.Context, rest func(context.Context, time.Duration) error) (n int, err error) {
	if err := context.Cause(ctx); err != nil || p.rate == 0 {
		return batch, err
	}
	if d := time.Until(p.next); d > 0 {
		if err := rest(ctx, d); err != nil {
			return 0, err
		}
	}
	return int(min(max(1, p.rate/4), batch)), nil
}

// took takes in that n messages went.
func (p *pace) took(n int) {
	if p.rate == 0 {
		return
	}
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
}
