package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// worker is one of Config.Lanes: it owns one channel, one goroutine and one batch at a time. In settings, names and
// messages to people it is called a lane.
type worker struct {
	c     *engine
	name  string // host/pid/start/lane
	sub   *rabbit.Subscription
	acks  acker
	clock *laneClock
	// locker is of the schema that the session met.
	locker schemaLock
	// declare makes the queues that are missing.
	declare  func(context.Context) error
	backstop bool
	size     int // of a batch, at most
	halfOpen halfOpen
	intake   context.Context // over when nothing more may be started; run sets it

	newInARow int  // messages that looked new and had no row
	reopened  bool // messages of a replay were in the last batch
	held      heldBack
	atOnce    int // calls: messages of the next group
	buf       []rabbit.Delivery
	hand      []item // the room of the batch in hand
}

// run takes batches until intake ends (nil), the subscription ends, or a batch fails; limit, if not 0, is how many
// batches it takes at most. work outlives intake: what is in hand is finished.
func (w *worker) run(intake, work context.Context, limit int) error {
	w.intake = intake
	defer func() { w.letGo(context.WithoutCancel(work), w.held.items...) }()
	for n := 1; ; {
		w.clock.rest()
		if intake.Err() != nil { // although more may have been delivered
			return nil
		}
		if err := w.c.runner.Full(); err != nil && !w.backstop {
			return err
		}
		if len(w.held.items) > 0 && !time.Now().Before(w.held.next) {
			w.clock.tick()
			if err := w.tryHeld(work); err != nil {
				return err
			}
			w.clock.rest()
		}
		taken, err := w.collect(intake)
		if len(taken) == 0 {
			if intake.Err() != nil || errors.Is(err, errCalm) {
				return nil
			}
			if err == nil || errors.Is(err, errTryHeld) || errors.Is(err, rabbit.ErrNoRoom) && len(w.held.items) > 0 {
				continue
			}
			return fmt.Errorf("take deliveries: %w", err)
		}
		w.buf = taken
		w.clock.tick()
		w.c.metrics.batchSize.Observe(float64(len(taken)))
		b := w.newBatch(taken)
		clear(taken) // the batch lets go of a body with its ack
		ctx, span := w.c.tracing.batch(work, b)
		err = w.process(ctx, b)
		w.c.tracing.ended(span, b, err)
		if err != nil {
			w.leave(context.WithoutCancel(work), b)
			return err
		}
		w.holdBack(work, b)
		if !w.backstop && w.c.breaker.Stops() {
			return errTripped
		}
		probing := w.halfOpen.probe && w.c.breaker.Spaces() // nothing was attempted
		done := limit > 0 && n >= limit && !w.c.service.away() && !probing || w.halfOpen.quarantine && b.fromNobody()
		clear(w.hand) // an idle worker keeps no bodies
		if done {
			return nil
		}
		n++
	}
}

// leave gives back what is open of a batch that has failed.
func (w *worker) leave(ctx context.Context, b *batch) {
	b.failed, b.parting = true, true
	w.oweClaims(b)
	w.unlock(ctx, b)
	_ = w.acknowledge(b) // what waited for the rest of the batch; a dead channel takes none
	w.abandon(b)
}

// oweClaims notes the claims of letters whose reason could not be written down: their messages are attempted again, and
// only that attempt counts.
func (w *worker) oweClaims(b *batch) {
	for _, it := range b.all {
		if it.claimedLetter() && it.stage < stageDurable {
			w.c.pending.giveBack(*it.claim)
		}
	}
}

// replayLinger is how long a batch waits for more, at least, behind one that had messages of a replay. That sends many,
// one after the other and more slowly than lanes work; in full batches they cost MySQL, RabbitMQ and this process half
// of what they do a few at a time. New messages that come beside them wait as long.
const replayLinger = 20 * time.Millisecond

// collect takes the next deliveries; none when it is time to try the copies of held ones, or was while the worker stood
// still. A worker in quarantine, or one that probes, does not wait for them for ever.
func (w *worker) collect(ctx context.Context) ([]rabbit.Delivery, error) {
	room := w.room()
	if room == 0 {
		return nil, w.standStill(ctx)
	}
	if w.held.full != nil {
		w.held.full = nil
		w.say(ctx)
	}
	if !w.held.next.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, w.held.next, errTryHeld)
		defer cancel()
	}
	if soon := w.halfOpen.calm(w.c.cfg); soon > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, soon, errCalm)
		defer cancel()
	}
	return w.sub.Collect(ctx, room, w.linger(), w.buf[:0])
}

// linger is how long the next batch waits for more.
func (w *worker) linger() time.Duration {
	linger := w.c.cfg.BatchLinger
	if w.reopened && linger > 0 {
		linger = max(linger, replayLinger)
	}
	w.reopened = false
	return linger
}

func (w *worker) newBatch(taken []rabbit.Delivery) *batch {
	b := &batch{
		all:     make([]*item, len(taken)),
		leaders: make(map[dedup.Identity]*item, len(taken)),
		taken:   time.Now(),
		token:   w.owner(),
	}
	if cap(w.hand) < len(taken) {
		w.hand = make([]item, len(taken), max(len(taken), min(w.size, 2*cap(w.hand))))
	}
	w.hand = w.hand[:len(taken)]
	for i := range taken {
		w.hand[i].delivery, w.hand[i].taken = taken[i], b.taken
		b.all[i] = &w.hand[i]
	}
	return b
}
