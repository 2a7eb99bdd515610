package lock

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// Probing begins soon, so that a hiccup costs little, and does not fall behind a server that comes back after hours.
const (
	firstProbe = 100 * time.Millisecond
	lastProbe  = 5 * time.Second
)

// keepLock is the life of Run: probe until the server answers, then renew until it fails.
func keepLock(ctx context.Context, h *health, every time.Duration, probe, renew func(context.Context) error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstProbe, lastProbe
	tick := time.NewTicker(every)
	defer tick.Stop()
	for delay := time.Duration(0); ; {
		if wait.For(ctx, delay) != nil {
			return
		}
		if err := probe(ctx); err != nil {
			if ctx.Err() == nil {
				h.fail(err)
			}
			delay = pause.NextBackOff()
			continue
		}
		h.recover()
		up := time.Now()
		for h.down() == nil { // first what is left from before
			if err := renew(ctx); err != nil && ctx.Err() == nil {
				h.fail(err)
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-h.failed:
			case <-tick.C:
			}
		}
		if time.Since(up) > lastProbe { // one that fails again at once keeps its long delays
			pause.Reset()
		}
		delay = pause.NextBackOff()
	}
}

// health is whether the lock's server is being asked.
type health struct {
	server string // what it is called in the log
	log    *slog.Logger
	policy Policy
	state  atomic.Pointer[healthState]
	failed chan struct{} // of one: wakes keepLock
}

type healthState struct {
	since time.Time
	cause error // nil: the server is being asked
}

func (h *health) init(server string, o Options) {
	h.server, h.log, h.policy, h.failed = server, o.Log, o.OnError, make(chan struct{}, 1)
	h.state.Store(&healthState{since: time.Now()})
}

// down returns why the server is not being asked, nil if it is.
func (h *health) down() error { return h.state.Load().cause }

// fail ends the asking. Only the first failure is told to the log.
func (h *health) fail(cause error) {
	before := h.state.Load()
	if before.cause != nil || !h.state.CompareAndSwap(before, &healthState{time.Now(), cause}) {
		return
	}
	select {
	case h.failed <- struct{}{}:
	default: // keepLock has not seen the last one yet, and looks at the state
	}
	doing := "going on without the lock, on the consumer log alone"
	if h.policy == Pause {
		doing = "nothing is consumed until it answers"
	}
	h.log.Warn(h.server+" failed: "+doing, "err", cause)
}

func (h *health) recover() {
	before := h.state.Load()
	if before.cause == nil || !h.state.CompareAndSwap(before, &healthState{since: time.Now()}) {
		return
	}
	h.log.Info(h.server+" answers again: locking as before", "away", time.Since(before.since).Round(time.Millisecond))
}
