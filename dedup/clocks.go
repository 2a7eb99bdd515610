package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrClocks says that no clock can be trusted to tell what is old.
var ErrClocks = errors.New("the clocks do not agree")

const (
	// clocksApart is how far clocks may differ that are set by the network: no retention and no cool-down is so short
	// that it matters.
	clocksApart = time.Minute
	// clocksSettled is how long a process's clock must stand to what it was set to, before it is believed: a machine that
	// slept is right at once, and nobody can tell it from one whose clock is wrong for a moment.
	clocksSettled = time.Hour
)

// Clocks is the time by the database's clock, for whoever deletes or repeats what is old by it. ErrClocks: it is over a
// minute from this process's, or this process's has been set by over a minute since it was last found right, less than
// an hour ago. With it comes no time; it goes away when the clocks agree again.
func (l *Log) Clocks(ctx context.Context) (time.Time, error) {
	sent := time.Now()
	now, err := l.Now(ctx)
	took := time.Since(sent)
	if err == nil {
		err = l.clocks.judge(now, sent.Add(took/2).Round(0), took/2, time.Since(l.clocks.made))
	}
	if err != nil {
		return time.Time{}, err
	}
	return now, nil
}

// clocks is what a process knows of its own clock.
type clocks struct {
	made time.Time // the beginning of steady time

	mu    sync.Mutex
	right time.Duration // what the clock was ahead of steady time when it was found right; guarded by mu
	known bool          // that is known; guarded by mu
	setAt time.Duration // the steady time at which it was found to have been set since, or 0; guarded by mu
}

// judge compares the database's clock with this process's, read at the same steady time but for an error.
func (c *clocks) judge(database, here time.Time, err, steady time.Duration) error {
	if apart := database.Sub(here); apart.Abs() > clocksApart+err {
		return fmt.Errorf("%w: the database's is %v, this process's %v, which is %v apart: set both by NTP", ErrClocks,
			database.Format(time.RFC3339), here.Format(time.RFC3339), apart.Abs().Round(time.Second))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ahead := here.Sub(c.made.Round(0)) - steady
	moved := ahead - c.right
	if c.known && moved.Abs() > clocksApart+err {
		if c.setAt == 0 {
			c.setAt = steady
		}
		if left := clocksSettled - (steady - c.setAt); left > 0 {
			return fmt.Errorf("%w: the database's and this process's were both set by %v; they are believed in %v", ErrClocks,
				moved.Round(time.Second), left.Round(time.Second))
		}
	}
	c.right, c.known, c.setAt = ahead, true, 0
	return nil
}
