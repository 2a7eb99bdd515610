package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/wait"
)

func (l *Redis) count(r Result, n int) { l.counts[r].Add(uint64(n)) }

// Attempts returns how many keys fared so since the lock was made.
func (l *Redis) Attempts(r Result) uint64 { return l.counts[r].Load() }

// Up says whether Redis is being asked, since when it is so, and, while it is not, why.
func (l *Redis) Up() (up bool, since time.Time, cause error) {
	s := l.health.state.Load()
	return s.cause == nil, s.since, s.cause
}

// Run renews the locks in hand at a third of their TTL, in one pipeline, and while Redis is away probes it with
// jittered backoff. It returns nil when ctx ends, leaving the locks in hand to their TTL. A Redis runs once.
func (l *Redis) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("the redis lock was run before")
	}
	keepLock(ctx, &l.health, l.o.LockTTL/3, l.probe, l.renew)
	return nil
}

// Probing begins soon, so that a hiccup costs little, and does not fall behind a Redis that comes back after hours.
const (
	firstProbe = 100 * time.Millisecond
	lastProbe  = 5 * time.Second
)

// keepLock is the life of Run: probe until Redis answers, then renew until it fails.
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

const probeKey = namePrefix + "probe"

// probe asks what Lock asks, because a PING is also answered by a Redis that is full, a read-only replica, or too old.
func (l *Redis) probe(ctx context.Context) error {
	pipe := l.client.Pipeline()
	_ = pipe.Process(ctx, redis.NewStringCmd(ctx, "set", probeKey, "probe", "nx", "px", 1000, "get"))
	cmds, err := l.exec(ctx, pipe)
	if err == nil {
		err = cmds[0].Err()
	}
	if errors.Is(err, redis.Nil) || err != nil && redis.HasErrorPrefix(err, "WRONGTYPE") {
		return nil // somebody else's value under the probe's name is an answer too
	}
	return explain(err)
}

// explain says what to do about answers that only another Redis or another URL can cure.
func explain(err error) error {
	switch {
	case redis.HasErrorPrefix(err, "syntax error"):
		return fmt.Errorf("redis 7.0 or later is needed, for SET with NX and GET: %w", err)
	case redis.HasErrorPrefix(err, "MOVED"):
		return fmt.Errorf("this is a cluster, say cluster=true in the URL: %w", err)
	}
	return err
}

// renewScript extends a key only while it holds our value.
const renewScript = `if redis.call("get",KEYS[1])==ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) end ` +
	`return 0`

// renewChunk bounds one pipeline of renewals, so that it fits into the timeout.
const renewChunk = 1000

func (l *Redis) renew(ctx context.Context) error {
	names, values, stale := l.renewer.due()
	if stale > 0 {
		l.o.Log.WarnContext(ctx, "locks were held too long and are no longer renewed", "locks", stale, "over", l.o.MaxHold)
	}
	for len(names) > 0 {
		size := min(renewChunk, len(names))
		if err := l.renewSome(ctx, names[:size], values[:size]); err != nil {
			return fmt.Errorf("renew %d locks: %w", size, err)
		}
		names, values = names[size:], values[size:]
	}
	return nil
}

func (l *Redis) renewSome(ctx context.Context, names []Name, values []string) error {
	pipe := l.client.Pipeline()
	for i, n := range names {
		_ = pipe.Process(ctx, redis.NewIntCmd(ctx, "eval", renewScript, 1, n.text, values[i], l.lockTTL))
	}
	cmds, err := l.exec(ctx, pipe)
	if err != nil {
		return err
	}
	for i, cmd := range cmds {
		n, err := cmd.(*redis.IntCmd).Result()
		if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return err
		}
		if n == 0 { // expired, flushed, or another's by now: there is nothing to renew any more
			l.renewer.remove(values[i], names[i:i+1])
		}
	}
	return nil
}

// health is whether Redis is being asked.
type health struct {
	log    *slog.Logger
	policy Policy
	state  atomic.Pointer[healthState]
	failed chan struct{} // of one: wakes keepLock
}

type healthState struct {
	since time.Time
	cause error // nil: Redis is being asked
}

func (h *health) init(o Options) {
	h.log, h.policy, h.failed = o.Log, o.OnError, make(chan struct{}, 1)
	h.state.Store(&healthState{since: time.Now()})
}

// down returns why Redis is not being asked, nil if it is.
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
	h.log.Warn("redis failed: "+doing, "err", cause)
}

func (h *health) recover() {
	before := h.state.Load()
	if before.cause == nil || !h.state.CompareAndSwap(before, &healthState{since: time.Now()}) {
		return
	}
	h.log.Info("redis answers again: locking as before", "away", time.Since(before.since).Round(time.Millisecond))
}
