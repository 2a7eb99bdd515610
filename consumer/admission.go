package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/consumer/internal/runner"
)

// enough says why the worker must not start what it has not started of a batch; nil while it may.
func (w *worker) enough(b *batch) error {
	if time.Since(b.taken) > w.c.cfg.HoldLimit {
		return errInHandTooLong
	}
	if err := w.c.runner.Full(); err != nil {
		return err
	}
	if !w.backstop && !w.halfOpen.probe && w.c.breaker.Stops() {
		return errTripped
	}
	if w.intake.Err() != nil {
		return errStopping
	}
	return nil
}

// lateFor reports whether a batch has been in hand for so long that whoever is in others' way comes back later: the
// next messages of the queue may be in nobody's way.
func (w *worker) lateFor(b *batch) bool { return time.Since(b.taken) > w.c.cfg.GiveBackAfter }

// nextGroup takes as many from the top of the batch's groups as may be attempted together. Who would meet locks of
// others steps aside, but for one, the trial, which goes by itself behind all others.
func (w *worker) nextGroup(b *batch, how way, probe bool) group {
	g := b.groups[len(b.groups)-1]
	b.groups = b.groups[:len(b.groups)-1]
	if g.trial {
		return g
	}
	n := min(len(g.items), how.most)
	switch {
	case probe:
		n = 1
	case w.c.service != nil:
		n = min(n, w.atOnce)
	default:
		n = w.c.contention.Most(n)
	}
	if n < len(g.items) {
		b.groups = append(b.groups, group{items: g.items[n:], tries: g.tries})
		g.items = g.items[:n:n]
	}
	if next := g.items[0].next; next != 0 && next != decide.RunAlone {
		return g
	}
	rest, aside, trial := w.c.contention.Part(g.items)
	for _, it := range aside {
		w.putOff(it, errStepsAside)
	}
	if len(trial) > 0 {
		b.groups = slices.Insert(b.groups, 0, group{items: trial, tries: 1, trial: true})
	}
	g.items = rest
	return g
}

// spare puts off what a probe does not attempt.
func (w *worker) spare(_ context.Context, b *batch) error {
	if !w.halfOpen.probe {
		return nil
	}
	room := admission.ProbeSize
	for _, some := range []*[]*item{&b.fresh, &b.opened, &b.again, &b.orphans, &b.alone} {
		n := min(room, len(*some))
		for _, it := range (*some)[n:] {
			w.putOff(it, errSpaced)
		}
		*some, room = (*some)[:n], room-n
	}
	return nil
}

// errStepsAside is why a message comes back later that was not tried.
var errStepsAside = errors.New("it names what messages named that waited for locks of others: it comes back, and no " +
	"attempt was counted")

// errSpaced is why a message is put off by a probe.
var errSpaced = errors.New("attempts are spaced out, because all of them fail: it comes back, and none was counted")

// allSlots lets many workers of this process run the handler at once, or one that takes over an expired lease: its
// message may be what killed a process, and whoever is claimed in the same process then pays an attempt for it. That
// includes the fast path, which claims nothing, because a message in it may kill what is taken over.
func allSlots(cfg Config) int64 { return int64(cfg.Lanes) + 1 }

// slot is a worker's leave to run the handler.
type slot struct {
	*worker
	alone bool
	since time.Time
	taken int64 // 0: it has none
}

// longestSlot bounds how long a worker that takes over keeps the others waiting. It keeps its slot for several
// messages, one after the other, because each wait for it lasts as long as a transaction of the others.
const longestSlot = 250 * time.Millisecond

// take waits until the worker has a slot: alone, or with others.
func (t *slot) take(ctx context.Context, alone bool) error {
	if t.taken > 0 && t.alone == alone && time.Since(t.since) < longestSlot {
		return nil
	}
	t.end()
	weight := int64(1)
	if alone {
		weight = allSlots(t.c.cfg)
	}
	t.clock.rest() // whether the transactions move that it waits for is for their workers' clocks to say
	if err := t.c.slots.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	t.clock.tick()
	t.alone, t.since, t.taken = alone, time.Now(), weight
	return nil
}

func (t *slot) end() {
	if t.taken > 0 {
		t.c.slots.Release(t.taken)
		t.taken = 0
	}
}

// putOff sends a message that is not at fault to a retry queue, and no attempt is counted.
func (w *worker) putOff(it *item, cause error) { it.end(InProgress, w.puttingOff(it, cause)) }

func (w *worker) puttingOff(it *item, cause error) settlement {
	delays := w.c.cfg.RetryDelays
	// For no longer than the lock is known.
	delay := decide.Fit(delays, w.c.contention.Age(it))
	if errors.Is(cause, errHandlerTimeout) { // each time for longer, because it costs the worker a handler's time
		delay = delays[min(w.c.strikes.Back(it.id.Identity), len(delays))-1]
	}
	return settlement{by: byRetry, delay: delay, cause: cause.Error()}
}

// mayKill reports whether a message was in the hands of a process that died so often that not even the handler's
// Validate may see it before a claim counts that.
func (w *worker) mayKill(it *item) bool {
	return w.backstop || it.circumstances().MayKill()
}

// validate asks the handler's Validator, if it is one, what is wrong with each of msgs. A panic is an error of the
// message, as is an end of the goroutine, and that it does not return.
func (w *worker) validate(ctx context.Context, msgs ...*Message) []error {
	errs := make([]error, len(msgs))
	if w.c.validator == nil {
		return errs
	}
	for next := 0; next < len(msgs); {
		// What is left behind keeps memory of its own.
		own, found := make([]Message, len(msgs)-next), make([]error, len(msgs)-next)
		for i, m := range msgs[next:] {
			own[i] = *m
		}
		bounded, cancel := context.WithTimeout(ctx, w.c.cfg.HandlerTimeout)
		at, err := w.c.runner.Run(bounded, calling(own), func(ctx context.Context) error {
			at := positionOf(ctx, own)
			for i := range own {
				at.Set(i)
				if found[i] = runner.Ask(w.c.validator.Validate(&own[i])); ctx.Err() != nil {
					return nil // for whom it was at; the others are asked anew
				}
			}
			return nil
		})
		cancel()
		for i := range at + 1 {
			if i == at && err != nil {
				errs[next+i] = fmt.Errorf("validation: %w", err)
				if p, ok := errors.AsType[*runner.PanicError](err); ok {
					errs[next+i] = fmt.Errorf("validation panicked: %v", p.Value)
				}
				break
			}
			errs[next+i], msgs[next+i].Value = found[i], own[i].Value
		}
		next += at + 1
	}
	return errs
}
