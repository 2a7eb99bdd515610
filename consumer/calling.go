package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// admitted waits until an attempt may be made. While the service of [Calls] is away the lane keeps its batch, with no
// claim, and one lane asks with one message; when that lasts too long the batch is given back.
func (l *lane) admitted(ctx context.Context, b *batch) (probe ticket, err error) {
	if l.c.service == nil {
		return nil, nil
	}
	for began := time.Now(); ; {
		if err := l.enough(b); err != nil {
			return nil, err
		}
		l.clock.tick()
		if probe, ok := l.c.service.admit(); ok {
			return probe, nil
		}
		if time.Since(began) > l.patience() {
			return nil, fmt.Errorf("%w: the service is away", errGiveBack)
		}
		l.clock.rest()
		if !l.c.service.wait(ctx, l.quit) && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// unused gives a ticket back that no call was made with.
func (t *attempt) unused() {
	if t.probe != nil && t.made == 0 {
		t.probe(errNotCalled)
	}
}

const (
	// firstGroup is how many messages share the first claim of a lane, which does not know yet how long calls take.
	firstGroup = 32
	// groupTime is how long a group may take: a process that dies leaves its claims to be taken over one at a time, and
	// slow calls make that slow.
	groupTime = time.Second
)

// learn makes the next group as large as may be called for within groupTime, but not so small that calls which could be
// made at the same time are not.
func (l *lane) learn(t *attempt, left bool) {
	took := time.Since(t.since)
	switch {
	case t.probe != nil || t.made == 0:
	case left || took > groupTime:
		l.atOnce = int(float64(t.made) * min(1, groupTime.Seconds()/took.Seconds()))
	default:
		l.atOnce = 2 * l.atOnce
	}
	share := (l.c.service.o.Concurrency + l.c.cfg.Lanes - 1) / l.c.cfg.Lanes
	l.atOnce = min(max(l.atOnce, share), claimAtOnce)
}

// call calls for one message after the other, many at the same time, outside any transaction, as long as the lease of
// the claims has room for one more call, the service is there and nobody wants to stop. It returns when all calls have.
func (t *attempt) call(ctx context.Context) error {
	if len(t.items) == 0 {
		return nil
	}
	all, outs := t.items, make([]called, len(t.items))
	t.items = nil
	var wg sync.WaitGroup
	for _, it := range all {
		done, free, ok := t.start(ctx)
		if !ok {
			break
		}
		at := t.made
		t.made++
		wg.Go(func() {
			defer free()
			outs[at] = t.c.service.call(ctx, it.msg, done)
			t.clock.tick()
		})
	}
	wg.Wait()
	t.goApart(all[t.made:]...)
	for i, it := range all[:t.made] {
		t.sort(it, outs[i])
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	t.c.at(PointEffect)
	return nil
}

// start waits for room among the calls of the process.
func (t *attempt) start(ctx context.Context) (done ticket, free func(), ok bool) {
	service := t.c.service
	last := t.since.Add((t.c.cfg.Lease - service.o.Timeout) / 2) // the other half is for recording what came of it
	bounded, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	if err := service.slots.Acquire(bounded, 1); err != nil {
		return nil, nil, false
	}
	free = func() { service.slots.Release(1) }
	select {
	case <-t.quit: // what is called is finished, what is not goes back
		free()
		return nil, nil, false
	default:
	}
	if bounded.Err() != nil {
		free()
		return nil, nil, false
	}
	if t.probe != nil {
		return t.probe, free, true
	}
	allowed, err := service.breaker.Allow()
	if err != nil {
		free()
		return nil, nil, false
	}
	return allowed, free, true
}

// sort files a message by what its call came to. Who meets an absent service again and again while others succeed has
// failed.
func (t *attempt) sort(it *item, out called) {
	switch out.kind {
	case CallApplied:
		t.applied = append(t.applied, it)
	case CallFailed, CallPermanent:
		t.blamed = append(t.blamed, blamed{it, out.err})
	case callStopped:
		t.goApart(it)
	default:
		if out.kind != CallLater {
			if times, guilty := t.c.suspects.blamed(it.id.Identity, t.c.commits.Load()); guilty {
				t.blamed = append(t.blamed, blamed{it, failedOften(out.err, times)})
				return
			}
		}
		t.back = append(t.back, putBack{it, out.err.Error(), func() { t.later(it, out) }})
	}
}

// later sends a message to a retry queue whose claim is given back.
func (t *attempt) later(it *item, out called) {
	if out.after == 0 && isCall(out.err, CallLater) { // as long as it has waited already
		out.after = it.row.Age
	}
	it.end(InProgress, retryAfter{
		delay: fitUp(t.c.cfg.RetryDelays, out.after), attempt: it.row.Attempts, cause: out.err.Error(),
	})
}

// mark commits the success of all whom the service has applied.
func (t *attempt) mark(ctx context.Context) error {
	if len(t.applied) == 0 {
		return nil
	}
	claims := eachOf(t.applied, (*item).claimed)
	errs, err := t.untilAllKnown(ctx, func(ctx context.Context) []error { return t.c.records.MarkAll(ctx, claims) })
	if err != nil {
		return err
	}
	t.c.at(PointCommitted)
	var done []*item
	for i, it := range t.applied {
		if errs[i] != nil { // somebody has taken its lease over, and calls with the same key
			t.leaseLost(it)
			continue
		}
		t.c.suspects.clear(it.id.Identity)
		done = append(done, it)
	}
	t.worker.applied(done)
	return nil
}

// fitUp is the shortest of delays that is not below wait, else the longest.
func fitUp(delays []time.Duration, wait time.Duration) time.Duration {
	for _, d := range delays {
		if d >= wait {
			return d
		}
	}
	return delays[len(delays)-1]
}
