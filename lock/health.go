package lock

import (
	"context"
	"log/slog"
	"sync"
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
	tick := time.Tick(every)
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
			case <-tick:
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
	failed chan struct{} // of one: wakes keepLock
	look   func()        // if set, is called after each change in place of the log

	mu    sync.Mutex
	since time.Time // guarded by mu
	cause error     // nil: the server is being asked; guarded by mu
	told  time.Time // when the log last said that it is down; guarded by mu
}

func (h *health) init(server string, o Options) {
	h.server, h.log, h.policy, h.failed, h.since = server, o.Log, o.OnError, make(chan struct{}, 1), time.Now()
}

func (h *health) state() (since time.Time, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since, h.cause
}

// down returns why the server is not being asked, nil if it is.
func (h *health) down() error {
	_, cause := h.state()
	return cause
}

// stillEvery is how often the log says that a lock's server is still away, seeThatItRuns what a person can do.
const (
	stillEvery    = time.Minute
	seeThatItRuns = "see that it runs, is reached from here and lets this user in"
)

func (h *health) recover() { h.fail(nil) }

// fail ends the asking; without a cause it begins again. The log is told of the first failure, once a minute that it
// goes on, and of its end.
func (h *health) fail(cause error) {
	h.mu.Lock()
	was, now, away := h.cause, time.Now(), time.Duration(0)
	if was != nil {
		away = now.Sub(h.since)
	}
	changed := (was == nil) != (cause == nil)
	if changed {
		h.since = now
	}
	tell := changed || cause != nil && now.Sub(h.told) >= stillEvery
	if tell {
		h.told = now
	}
	h.cause = cause
	h.mu.Unlock()
	if changed && cause != nil {
		select {
		case h.failed <- struct{}{}:
		default: // keepLock has not seen the last one yet, and looks at the state
		}
	}
	switch {
	case h.look != nil:
		h.look()
	case !tell:
	case cause == nil:
		h.log.Info(h.server+" answers again: locking as before", "away", away.Round(time.Millisecond))
	default:
		what := " failed: going on without the lock, on the consumer log alone"
		if was != nil {
			what = " is still away"
		} else if h.policy == Pause {
			what = " failed: nothing is consumed until it answers"
		}
		h.log.Warn(h.server+what, "err", cause, "do", seeThatItRuns, "since", away.Round(time.Second))
	}
}
