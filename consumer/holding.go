package consumer

import (
	"context"
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
)

// pausedByHeld is the name among the reasons for a pause of a worker that holds so many deliveries that it takes no
// more.
const pausedByHeld = "held"

// holding is what all workers hold, as each has said last.
type holding struct {
	health *health

	mu    sync.Mutex
	lanes map[string]holds // that hold anything, by name; guarded by mu
}

// holds is what one worker holds.
type holds struct {
	letters    map[dedup.Identity]bool
	amiss      map[degradation]error // what copies meet, or, without a queue, why the worker takes nothing new
	deliveries int
}

func newHolding(h *health) *holding { return &holding{health: h, lanes: map[string]holds{}} }

// has reports whether some worker of this process holds a letter of this identity.
func (g *holding) has(k dedup.Identity) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, of := range g.lanes {
		if of.letters[k] {
			return true
		}
	}
	return false
}

// size is how many deliveries are held.
func (g *holding) size() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, of := range g.lanes {
		n += of.deliveries
	}
	return n
}

// say takes in what a worker holds now, and says what is amiss, and what is no more.
func (g *holding) say(ctx context.Context, lane string, now holds) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.lanes[lane]
	if g.lanes[lane] = now; now.deliveries+len(now.amiss) == 0 {
		delete(g.lanes, lane)
	}
	still := map[degradation]bool{}
	for _, of := range g.lanes {
		for what := range of.amiss {
			still[what] = true
		}
	}
	for what := range was.amiss {
		if !still[what] {
			g.tell(ctx, what, nil)
		}
	}
	for what, why := range now.amiss {
		g.tell(ctx, what, why)
	}
}

// tell says that something is amiss, or, without an error, no more.
func (g *holding) tell(ctx context.Context, what degradation, why error) {
	switch {
	case what.queue != "":
		g.health.degraded(ctx, what.why, what.queue, why)
	case why != nil:
		g.health.missing(ctx, what.why, why)
	default:
		g.health.back(ctx, what.why)
	}
}
