package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// lane owns one channel, one goroutine and one batch at a time.
type lane struct {
	c     *engine
	name  string // host/pid/start/lane
	sub   *rabbit.Subscription
	clock *laneClock
	// locker is of the schema that the session met.
	locker schemaLock
	// declare makes the queues that are missing.
	declare  func(context.Context) error
	backstop bool
	size     int // of a batch, at most
	halfOpen halfOpen
	intake   context.Context // over when nothing more may be started; run sets it

	skipper lookUpSkipper
	held    heldBack
	atOnce  int // calls: messages of the next group
	buf     []rabbit.Delivery
	hand    []item // the room of the batch in hand
}

// run takes batches until intake ends (nil), the subscription ends, or a batch fails; limit, if not 0, is how many
// batches it takes at most. work outlives intake: what is in hand is finished.
func (l *lane) run(intake, work context.Context, limit int) error {
	l.intake = intake
	defer func() { l.letGo(context.WithoutCancel(work), l.held.items...) }()
	for n := 1; ; {
		l.clock.rest()
		if intake.Err() != nil { // although more may have been delivered
			return nil
		}
		if err := l.c.runner.full(); err != nil && !l.backstop {
			return err
		}
		if len(l.held.items) > 0 && !time.Now().Before(l.held.next) {
			l.clock.tick()
			if err := l.tryHeld(work); err != nil {
				return err
			}
			l.clock.rest()
		}
		taken, err := l.collect(intake)
		if len(taken) == 0 {
			if intake.Err() != nil || errors.Is(err, errCalm) {
				return nil
			}
			if err == nil || errors.Is(err, errTryHeld) || errors.Is(err, rabbit.ErrNoRoom) && len(l.held.items) > 0 {
				continue
			}
			return fmt.Errorf("take deliveries: %w", err)
		}
		l.buf = taken
		l.clock.tick()
		l.c.metrics.batchSize.Observe(float64(len(taken)))
		b := l.newBatch(taken)
		clear(taken) // the batch lets go of a body with its ack
		ctx, span := l.c.tracing.batch(work, b)
		err = l.process(ctx, b)
		l.c.tracing.ended(span, b, err)
		if err != nil {
			b.failed, b.parting = true, true
			l.oweClaims(b)
			l.unlock(context.WithoutCancel(work), b)
			_ = l.acknowledge(b) // what waited for the rest of the batch; a dead channel takes none
			l.abandon(b)
			return err
		}
		l.holdBack(work, b)
		if !l.backstop && l.c.brake.stops() {
			return errBraked
		}
		probing := l.halfOpen.probe && l.c.brake.spaces() // nothing was attempted
		done := limit > 0 && n >= limit && !l.c.service.away() && !probing || l.halfOpen.quarantine && b.fromNobody()
		clear(l.hand) // an idle lane keeps no bodies
		if done {
			return nil
		}
		n++
	}
}

// oweClaims notes the claims of letters whose reason could not be written down: their messages are attempted again, and
// only that attempt counts.
func (l *lane) oweClaims(b *batch) {
	for _, it := range b.all {
		if it.claimedLetter() && it.stage < stageDurable {
			l.c.debts.owe(*it.claim)
		}
	}
}

// collect takes the next deliveries; none when it is time to try the copies of held ones, or was while the lane stood
// still. A lane in quarantine, or one that probes, does not wait for them for ever.
func (l *lane) collect(ctx context.Context) ([]rabbit.Delivery, error) {
	room := l.room()
	if room == 0 {
		return nil, l.standStill(ctx)
	}
	if l.held.full != nil {
		l.held.full = nil
		l.say(ctx)
	}
	if !l.held.next.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, l.held.next, errTryHeld)
		defer cancel()
	}
	if soon := l.halfOpen.calm(l.c.cfg); soon > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, soon, errCalm)
		defer cancel()
	}
	return l.sub.Collect(ctx, room, l.c.cfg.BatchLinger, l.buf[:0])
}

func (l *lane) newBatch(taken []rabbit.Delivery) *batch {
	b := &batch{
		all:     make([]*item, len(taken)),
		leaders: make(map[dedup.Identity]*item, len(taken)),
		taken:   time.Now(),
		token:   l.owner(),
	}
	if cap(l.hand) < len(taken) {
		l.hand = make([]item, len(taken), max(len(taken), min(l.size, 2*cap(l.hand))))
	}
	l.hand = l.hand[:len(taken)]
	for i := range taken {
		l.hand[i].delivery, l.hand[i].taken = taken[i], b.taken
		b.all[i] = &l.hand[i]
	}
	return b
}
