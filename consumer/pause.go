package consumer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// PausedByPerson is a person's order among the reasons for a pause in [State] and in the metric rollbackd_paused.
const PausedByPerson = "person"

// errPersonPaused ends the sessions of a daemon whose fleet a person has paused.
var errPersonPaused = errors.New("a person has paused consuming")

// pauseEvery is how often a daemon looks whether a person has paused its fleet, give or take a quarter.
const pauseEvery = 2 * time.Second

// pause is what this daemon knows of a person's order to consume nothing. The order is a row that each daemon of the
// fleet reads every pauseEvery. While MySQL does not answer, what was read last holds, and an end that was read comes
// by this process's own clock: nobody has to be reached for consuming to go on.
type pause struct {
	c *engine

	mu    sync.Mutex
	now   dedup.Pause        // the one that holds; guarded by mu
	until time.Time          // its end by this process's clock; zero while there is none; guarded by mu
	phase context.Context    // until it begins, or ends; guarded by mu
	turn  context.CancelFunc // ends phase; guarded by mu
}

func newPause(c *engine) *pause {
	p := &pause{c: c}
	p.phase, p.turn = context.WithCancel(context.Background())
	return p
}

// watch looks again and again until ctx ends. The first look is that of the first session.
func (p *pause) watch(ctx context.Context) {
	for {
		next := pauseEvery*3/4 + rand.N(pauseEvery/2)
		if left, paused := p.left(); paused {
			next = min(next, left)
		}
		if wait.For(ctx, next) != nil {
			return
		}
		if err := p.look(ctx); err != nil {
			p.over(ctx) // the rest is said by whoever waits for MySQL
		}
	}
}

// look reads the order. Its error says that it could not be read, and changes nothing.
func (p *pause) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.c.opTimeout)
	defer cancel()
	order, err := p.c.records.Paused(ctx, p.c.cfg.Group, p.c.cfg.Queue)
	if err != nil {
		return err
	}
	p.set(ctx, order)
	return nil
}

// over ends a pause whose time is over by this process's clock.
func (p *pause) over(ctx context.Context) {
	if left, paused := p.left(); paused && left <= 0 {
		p.set(ctx, dedup.Pause{})
	}
}

// left is how long the pause lasts yet.
func (p *pause) left() (d time.Duration, paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, time.Until(p.until)), !p.until.IsZero()
}

func (p *pause) set(ctx context.Context, order dedup.Pause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is, was := order.Left > 0, !p.until.IsZero()
	switch {
	case is:
		p.until = time.Now().Add(order.Left)
		if !was || p.now.ID != order.ID {
			p.c.health.missing(ctx, PausedByPerson, errors.New(order.String()))
		}
		p.now = order
	case was:
		p.until, p.now = time.Time{}, dedup.Pause{}
		p.c.health.back(ctx, PausedByPerson)
	}
	if is != was {
		p.turn()
		p.phase, p.turn = context.WithCancel(context.Background())
	}
}

// changes is a context that ends when the pause does, or when one begins.
func (p *pause) changes() (phase context.Context, paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.phase, !p.until.IsZero()
}

// running is a context for a session: that of intake, until a pause begins.
func (p *pause) running(intake context.Context) (context.Context, context.CancelFunc) {
	phase, paused := p.changes()
	ctx, cancel := context.WithCancelCause(intake)
	if paused {
		cancel(errPersonPaused)
	}
	stop := context.AfterFunc(phase, func() { cancel(errPersonPaused) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// wait returns when there is no pause, or when ctx ends. Meanwhile it pays what is owed, as any pause does.
func (p *pause) wait(ctx context.Context) {
	for ctx.Err() == nil {
		phase, _ := p.changes()
		left, paused := p.left()
		if !paused {
			return
		}
		rest, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(phase, cancel)
		p.c.rest(rest, left+pauseEvery) // the watch ends it
		stop()
		cancel()
	}
}
