package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// askAgain is how soon a worker asks again whether a call may be made: the breaker tells nobody.
const askAgain = 100 * time.Millisecond

// admitted waits until an attempt may be made. While the service of [Calls] is away the worker keeps its batch, with no
// claim, and one worker asks with one message: it has the only ticket. When that lasts too long the batch is given
// back. Without a ticket each call asks for its own.
func (w *worker) admitted(ctx context.Context, b *batch) (probe ticket, err error) {
	for began := time.Now(); w.c.service.away(); {
		if err := w.enough(b); err != nil {
			return nil, err
		}
		w.clock.tick()
		if probe, err := w.c.service.breaker.Allow(); err == nil {
			return probe, nil
		}
		if time.Since(began) > w.patience() {
			return nil, fmt.Errorf("%w: the service is away", errGiveBack)
		}
		w.clock.rest()
		select {
		case <-time.After(askAgain):
		case <-w.intake.Done():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	w.clock.tick()
	return nil, nil
}

// unused gives a ticket back that no call was made with.
func (t *attempt) unused() {
	if t.probe != nil && t.made == 0 {
		t.probe(errNotCalled)
	}
}

const (
	// firstGroup is how many messages share the first claim of a worker, which does not know yet how long calls take.
	firstGroup = 32
	// groupTime is how long a group may take: after two deaths its claims are taken over one at a time, and slow calls
	// make that slow.
	groupTime = time.Second
)

// learn makes the next group as large as may be called for within groupTime, but not so small that calls which could be
// made at the same time are not.
func (w *worker) learn(t *attempt, left bool) {
	took := time.Since(t.since)
	switch {
	case t.probe != nil || t.made == 0:
	case left || took > groupTime:
		w.atOnce = int(float64(t.made) * min(1, groupTime.Seconds()/took.Seconds()))
	default:
		w.atOnce = 2 * w.atOnce
	}
	share := (w.c.service.o.Concurrency + w.c.cfg.Lanes - 1) / w.c.cfg.Lanes
	w.atOnce = min(max(w.atOnce, share), claimAtOnce)
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
	if t.intake.Err() == nil && bounded.Err() == nil { // what is called is finished, what is not goes back
		if t.probe != nil {
			return t.probe, free, true
		}
		if allowed, err := service.breaker.Allow(); err == nil {
			return allowed, free, true
		}
	}
	free()
	return nil, nil, false
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
	case CallLater:
		t.comesLater(it, out.err, out.after)
	default:
		if times, guilty := t.suspect(it); guilty {
			t.blamed = append(t.blamed, blamed{it, failedOften(out.err, times)})
			return
		}
		why := out.err.Error()
		comes := settlement{by: byRetry, delay: t.c.cfg.RetryDelays[0], cause: why}
		t.back = append(t.back, putBack{it: it, remark: why, comes: comes})
	}
}

// mark commits the success of all whom the service has applied.
func (t *attempt) mark(ctx context.Context) error {
	if len(t.applied) == 0 {
		return nil
	}
	var done []*item
	lost, err := moveRows(ctx, t.worker, t.applied, func(some []*item) transition {
		claims := eachOf(some, (*item).claimed)
		return func(ctx context.Context) ([]dedup.Row, []error) { return nil, t.c.records.MarkAll(ctx, claims) }
	}, func(it *item, _ dedup.Row) {
		t.c.strikes.Clear(it.id.Identity)
		done = append(done, it)
	})
	if err != nil {
		return err
	}
	t.c.at(PointCommitted)
	t.leaseLost(lost...) // somebody has taken a lease over, and calls with the same key
	t.worker.applied(done)
	return nil
}
