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
	told   atomic.Int64  // when the log last said that it is down, in Unix nanoseconds
}

// stillEvery is how often the log says that a lock's server is still away.
const stillEvery = time.Minute

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

// fail ends the asking. The log is told of the first failure, and once a minute that it goes on.
func (h *health) fail(cause error) {
	before, now := h.state.Load(), time.Now()
	if before.cause != nil {
		last := h.told.Load()
		if now.UnixNano()-last >= int64(stillEvery) && h.told.CompareAndSwap(last, now.UnixNano()) {
			h.log.Warn(h.server+" is still away", "err", cause, "do", seeThatItRuns, "since",
				now.Sub(before.since).Round(time.Second))
		}
		return
	}
	if !h.state.CompareAndSwap(before, &healthState{now, cause}) {
		return
	}
	h.told.Store(now.UnixNano())
	select {
	case h.failed <- struct{}{}:
	default: // keepLock has not seen the last one yet, and looks at the state
	}
	doing := "going on without the lock, on the consumer log alone"
	if h.policy == Pause {
		doing = "nothing is consumed until it answers"
	}
	h.log.Warn(h.server+" failed: "+doing, "err", cause, "do", seeThatItRuns)
}

// seeThatItRuns is what a person can do while a lock's server is away.
const seeThatItRuns = "see that it runs, is reached from here and lets this user in"

func (h *health) recover() {
	before := h.state.Load()
	if before.cause == nil || !h.state.CompareAndSwap(before, &healthState{since: time.Now()}) {
		return
	}
	h.log.Info(h.server+" answers again: locking as before", "away", time.Since(before.since).Round(time.Millisecond))
}
