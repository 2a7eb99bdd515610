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
	now   dedup.Pause        // the one that holds; zero while there is none; guarded by mu
	until time.Time          // its end by this process's clock; guarded by mu
	turn  context.Context    // until it begins, or ends; guarded by mu
	turns context.CancelFunc // ends turn; guarded by mu
}

func newPause(c *engine) *pause {
	p := &pause{c: c}
	p.turn, p.turns = context.WithCancel(context.Background())
	return p
}

// watch looks again and again until ctx ends. The first look is that of the first session.
func (p *pause) watch(ctx context.Context) {
	for {
		next := pauseEvery*3/4 + rand.N(pauseEvery/2)
		_, end, left, paused := p.phase(ctx)
		if end(); paused {
			next = min(next, left)
		}
		if wait.For(ctx, next) != nil {
			return
		}
		_ = p.look(ctx) // whoever waits for MySQL says so
	}
}

// look reads the order. Its error says that it could not be read: what was read last holds, as long as that says.
func (p *pause) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.c.opTimeout)
	defer cancel()
	order, err := p.c.records.Paused(ctx, p.c.cfg.Group, p.c.cfg.Queue)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		order = p.now
		order.Left = time.Until(p.until)
	}
	is, was := order.Left > 0, p.now.Left > 0
	switch {
	case !is:
		order = dedup.Pause{}
		if was {
			p.c.health.back(ctx, PausedByPerson)
		}
	case order.ID != p.now.ID:
		p.c.health.missing(ctx, PausedByPerson, errors.New(order.String()))
	}
	p.now, p.until = order, time.Now().Add(order.Left)
	if is != was {
		p.turns()
		p.turn, p.turns = context.WithCancel(context.Background())
	}
	return err
}

// phase is a context that ends with parent, or when a pause begins or ends; and for how long the pause lasts yet, if
// there is one.
func (p *pause) phase(parent context.Context) (
	ctx context.Context, end context.CancelFunc, left time.Duration, paused bool,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(p.turn, func() { cancel(errPersonPaused) })
	end = func() {
		stop()
		cancel(nil)
	}
	return ctx, end, max(0, time.Until(p.until)), p.now.Left > 0
}
