package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// errTryHeld ends a worker's wait for deliveries when it is time to try the copies of held ones again.
var errTryHeld = errors.New("time to publish refused copies again")

// heldBack are deliveries whose copies a queue refuses: it is full, or gone. They stay unacked, with their followers,
// while their worker goes on with others.
type heldBack struct {
	items []*item // in the order in which the copies are tried: the ones refused last are at the end
	pause *backoff.ExponentialBackOff
	next  time.Time // of the next try; zero while nothing is held
	made  time.Time // when the worker last asked for the queues that are missing
	full  error     // why the worker takes nothing new; nil while it does
}

// amiss is what the copy of a held delivery meets, and what to do about it; the zero value when that is nothing: it is
// another copy than before, and no try of it has failed.
func (w *worker) amiss(it *item) (what degradation, advice error) {
	why := it.copy.refused
	switch {
	case why == nil:
		why = it.copy.unsure
	case it.copy.unsure != nil:
		why = fmt.Errorf("%w; and another try: %w", why, it.copy.unsure)
	}
	switch {
	case why == nil:
		return degradation{}, nil
	case errors.Is(why, rabbit.ErrUnsendable):
		return degradation{cannotBeSent, w.queueOf(it)}, fmt.Errorf("RabbitMQ takes no copy of this message as it is: it "+
			"is held, and tried when it comes again, the rest flows; raise RabbitMQ's max_message_size or frame_max, as the "+
			"answer says: %w", why)
	}
	return degradation{refusesCopies, w.queueOf(it)}, fmt.Errorf("what goes there is held until the queue takes it, the "+
		"rest flows; is it full (rabbitmqctl list_policies), gone, or forbidden (doctor)? %w", why)
}

// withFollowers are the delivery and its followers.
func (it *item) withFollowers() []*item { return append([]*item{it}, it.followers...) }

// say tells the other workers what this one holds. The backstop's worker is not what the engine is there for.
func (w *worker) say(ctx context.Context) {
	now := holds{letters: map[dedup.Identity]bool{}, amiss: map[degradation]error{}}
	for _, it := range w.held.items {
		now.deliveries += 1 + len(it.followers)
		if it.by == byDeadLetter {
			now.letters[it.id.Identity] = true
		}
		if what, advice := w.amiss(it); advice != nil {
			now.amiss[what] = advice
		}
	}
	if w.held.full != nil {
		what := degradation{why: pausedByHeld}
		if w.backstop {
			what.queue = rabbit.BackstopQueue(w.c.cfg.Queue)
		}
		now.amiss[what] = w.held.full
	}
	w.c.holding.say(ctx, w.name, now)
}

// heldLimit is how long a delivery may be held: with HoldLimit at its ten minutes 15. It is looked at between two
// batches, each of which may take HoldLimit, and both together stay below RabbitMQ's consumer timeout of 30, which
// would end the session with everything in hand.
func (c Config) heldLimit() time.Duration { return c.HoldLimit * 3 / 2 }

// holdBack takes what was refused out of a batch that has come to its end, into memory of its own.
func (w *worker) holdBack(ctx context.Context, b *batch) {
	before := len(w.held.items)
	for _, it := range b.all {
		if it.copy.refused == nil {
			continue
		}
		own := *it
		own.lock.holder = b.token
		own.followers = make([]*item, len(it.followers))
		for i, f := range it.followers {
			follower := *f
			own.followers[i] = &follower
		}
		w.held.items = append(w.held.items, &own)
		w.unload(&own)
	}
	if len(w.held.items) == before {
		return
	}
	w.say(ctx)
	if w.held.next.IsZero() {
		w.held.pause = newBackOff()
		w.held.next = time.Now().Add(w.held.pause.NextBackOff())
	}
}

// unload lets go of the body of what cannot be sent as it is: such bodies are large, and would fill the worker's share
// of the memory until an operator comes. The row knows what is to become of it when it comes again.
func (w *worker) unload(it *item) {
	if what, _ := w.amiss(it); it.copy.unloaded || what.why != cannotBeSent {
		return
	}
	it.copy.unloaded = true
	for _, d := range it.withFollowers() {
		d.unload()
		w.sub.Unload(d.delivery.Tag)
	}
}

// room is how many deliveries the worker may take without ever holding more than half of its window, were all of them
// refused; 0 when that would be so few that the good ones among them crawled, or when what is held fills the worker's
// share of the memory: then it takes none until it holds less.
func (w *worker) room() int {
	if w.fillsShare() {
		return 0
	}
	half := max(1, w.sub.Window()/2)
	room := half
	for _, it := range w.held.items {
		if !it.copy.unloaded {
			room -= 1 + len(it.followers)
		}
	}
	if room < max(1, min(w.size, half)/8) {
		return 0
	}
	return min(room, w.size)
}

// fillsShare reports whether what is held leaves no room for anything more in the worker's share of the memory budget.
func (w *worker) fillsShare() bool { return len(w.held.items) > 0 && !w.sub.HasRoom() }

// standStill waits for the next try while the worker takes nothing new, and says why it does not.
func (w *worker) standStill(ctx context.Context) error {
	n := 0
	var refused error
	for _, it := range w.held.items {
		n += 1 + len(it.followers)
		if refused == nil && it.copy.refused != nil {
			refused = fmt.Errorf("queue %q: %w", w.queueOf(it), it.copy.refused)
		}
	}
	why := fmt.Errorf("%d deliveries of lane %s wait for their copies to be taken, and it takes no more", n, w.name)
	if w.fillsShare() {
		why = fmt.Errorf("%w: their bodies fill its share of the memory budget", why)
	}
	if refused != nil {
		why = fmt.Errorf("%w: %w", why, refused)
	}
	w.held.full = why
	w.say(ctx)
	if w.halfOpen.quarantine {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, calm, errCalm)
		defer cancel()
	}
	return w.sub.Rest(ctx, time.Until(w.held.next))
}

// tryHeld publishes refused copies again: of each queue one, and if it is taken twice as many, and so on, so that a
// full queue costs little and one that has room again is caught up with at once. Of what cannot be sent as it is only
// the rows are looked at: only an operator can change that, and it is tried when it is delivered again.
func (w *worker) tryHeld(ctx context.Context) error {
	w.remake(ctx)
	if slices.ContainsFunc(w.held.items, func(it *item) bool { return errors.Is(it.copy.refused, rabbit.ErrNacked) }) {
		w.c.publisher.Renew()
	}
	w.giveBackOld(ctx)
	by := map[degradation][]*item{}
	for _, it := range w.held.items {
		what, _ := w.amiss(it)
		if what.why != cannotBeSent || time.Since(it.copy.tried) >= w.c.cfg.GiveBackAfter {
			by[what] = append(by[what], it)
		}
	}
	before := len(w.held.items)
	for _, waiting := range by {
		for n, taken := 1, true; taken && len(waiting) > 0; n *= 2 {
			n = min(n, len(waiting))
			var err error
			if taken, err = w.trySome(ctx, waiting[:n]); err != nil {
				return err
			}
			waiting = waiting[n:]
		}
	}
	if len(w.held.items) < before {
		w.held.pause.Reset()
	}
	if w.held.next = time.Now().Add(w.held.pause.NextBackOff()); len(w.held.items) == 0 {
		w.held.next = time.Time{}
	}
	return nil
}

// trySome looks at the rows first, each time: what somebody else has ended or reopened meanwhile needs no letter any
// more. A copy of which nobody knows whether it arrived is held on, and published again at the next try, if its row
// still asks for it. It reports whether the queue took all copies.
func (w *worker) trySome(ctx context.Context, some []*item) (taken bool, err error) {
	if err := w.reconsider(ctx, some); err != nil {
		return false, err
	}
	unknown, _ := w.publish(ctx, pick(some, func(it *item) bool { // each keeps why
		return it.by > byAck && it.stage < stagePublished && !it.copy.unloaded
	}))
	if _, err := w.recordLetters(ctx, some); err != nil {
		return false, err
	}
	taken = len(unknown) == 0
	b := &batch{}
	for _, it := range some {
		it.carryFollowers()
		switch {
		case it.stage == stageDurable:
			w.unlock(ctx, &batch{all: []*item{it}, token: it.lock.holder})
			b.all = append(b.all, it.withFollowers()...)
		case it.copy.unloaded && it.copy.refused == nil: // somebody moved its row: let it be judged anew
			w.giveBack(ctx, it)
		default:
			taken = taken && it.copy.refused == nil
			w.unload(it)
			it.copy.tried = time.Now()
			w.held.items = append(slices.DeleteFunc(w.held.items, func(o *item) bool { return o == it }), it)
		}
	}
	err = w.acknowledge(b)
	w.held.items = slices.DeleteFunc(w.held.items, func(it *item) bool { return it.stage == stageAcked })
	w.say(ctx)
	return taken, err
}

// giveBackOld gives those back, alone, that would be taken away soon together with all others. It costs each a
// delivery up to RabbitMQ 4.2, which counts what is given back.
func (w *worker) giveBackOld(ctx context.Context) {
	for _, it := range slices.Clone(w.held.items) {
		if time.Since(it.delivery.Came) < w.c.cfg.heldLimit() {
			continue
		}
		_, why := w.amiss(it)
		w.c.log.WarnContext(ctx, "held too long, given back", "message", it.id.Identity, "queue", w.queueOf(it), "err", why)
		w.giveBack(ctx, it)
	}
}

func (w *worker) giveBack(ctx context.Context, it *item) {
	w.letGo(ctx, it)
	for _, d := range it.withFollowers() {
		_ = w.sub.Requeue(d.delivery.Tag, false) // a dead channel has given it back
	}
}

// letGo abandons what is held: it goes back to the broker.
func (w *worker) letGo(ctx context.Context, some ...*item) {
	some = slices.Clone(some)
	for _, it := range some {
		b := &batch{all: it.withFollowers(), token: it.lock.holder, failed: true}
		w.unlock(ctx, b)
		w.abandon(b)
	}
	w.held.items = slices.DeleteFunc(w.held.items, func(it *item) bool { return slices.Contains(some, it) })
	if len(w.held.items) == 0 {
		w.held.full = nil
	}
	w.say(ctx)
}

// remake makes queues that are gone once they are missing for as long as a worker waits for a dependency: whoever
// deleted one to make it anew has had the time.
func (w *worker) remake(ctx context.Context) {
	gone := slices.ContainsFunc(w.held.items, func(it *item) bool {
		return errors.Is(it.copy.refused, rabbit.ErrUnroutable) && time.Since(it.delivery.Came) > w.c.cfg.GiveBackAfter
	})
	if !gone || time.Since(w.held.made) < w.c.cfg.GiveBackAfter || w.declare == nil {
		return
	}
	w.held.made = time.Now()
	if err := w.declare(ctx); err != nil {
		w.c.log.WarnContext(ctx, "make the queues that are missing", "err", err)
	}
}
