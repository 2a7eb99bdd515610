package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// pausedByHeld is the name among the reasons for a pause of a lane that holds so many deliveries that it takes no more.
const pausedByHeld = "held"

// errTryHeld ends a lane's wait for deliveries when it is time to try the copies of held ones again.
var errTryHeld = errors.New("time to publish refused copies again")

// heldBack are deliveries whose copies a queue refuses: it is full, or gone. They stay unacked, with their followers,
// while their lane goes on with others.
type heldBack struct {
	items []*item // in the order in which the copies are tried: the ones refused last are at the end
	pause *backoff.ExponentialBackOff
	next  time.Time // of the next try; zero while nothing is held
	made  time.Time // when the lane last asked for the queues that are missing
	full  error     // why the lane takes nothing new; nil while it does
}

// amiss is what the copy of a held delivery meets, and what to do about it; the zero value when that is nothing: it is
// another copy than before, and no try of it has failed.
func (l *lane) amiss(it *item) (what degradation, advice error) {
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
		return degradation{cannotBeSent, l.queueOf(it)}, fmt.Errorf("RabbitMQ takes no copy of this message as it is: it "+
			"is held, and tried when it comes again, the rest flows; raise RabbitMQ's max_message_size or frame_max, as the "+
			"answer says: %w", why)
	}
	return degradation{refusesCopies, l.queueOf(it)}, fmt.Errorf("what goes there is held until the queue takes it, the "+
		"rest flows; is it full (rabbitmqctl list_policies), gone, or forbidden (doctor)? %w", why)
}

// withFollowers are the delivery and its followers.
func (it *item) withFollowers() []*item { return append([]*item{it}, it.followers...) }

// holding is what all lanes hold, as each has said last.
type holding struct {
	health *health

	mu    sync.Mutex
	lanes map[string]holds // that hold anything, by name; guarded by mu
}

// holds is what one lane holds.
type holds struct {
	letters    map[dedup.Identity]bool
	amiss      map[degradation]error // what copies meet, or, without a queue, why the lane takes nothing new
	deliveries int
}

func newHolding(h *health) *holding { return &holding{health: h, lanes: map[string]holds{}} }

// has reports whether some lane of this process holds a letter of this identity.
func (g *holding) has(k dedup.Identity) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, of := range g.lanes {
		if of.letters[k] {
			return true
		}
	}
	return false
}

// size is how many deliveries are held.
func (g *holding) size() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, of := range g.lanes {
		n += of.deliveries
	}
	return n
}

// say takes in what a lane holds now, and says what is amiss, and what is no more.
func (g *holding) say(ctx context.Context, lane string, now holds) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.lanes[lane]
	if g.lanes[lane] = now; now.deliveries+len(now.amiss) == 0 {
		delete(g.lanes, lane)
	}
	still := map[degradation]bool{}
	for _, of := range g.lanes {
		for what := range of.amiss {
			still[what] = true
		}
	}
	for what := range was.amiss {
		if !still[what] {
			g.tell(ctx, what, nil)
		}
	}
	for what, why := range now.amiss {
		g.tell(ctx, what, why)
	}
}

// tell says that something is amiss, or, without an error, no more.
func (g *holding) tell(ctx context.Context, what degradation, why error) {
	switch {
	case what.queue != "":
		g.health.degraded(ctx, what.why, what.queue, why)
	case why != nil:
		g.health.missing(ctx, what.why, why)
	default:
		g.health.back(ctx, what.why)
	}
}

// say tells the other lanes what this one holds. The backstop's lane is not what the engine is there for.
func (l *lane) say(ctx context.Context) {
	now := holds{letters: map[dedup.Identity]bool{}, amiss: map[degradation]error{}}
	for _, it := range l.held.items {
		now.deliveries += 1 + len(it.followers)
		if it.by == byDeadLetter {
			now.letters[it.id.Identity] = true
		}
		if what, advice := l.amiss(it); advice != nil {
			now.amiss[what] = advice
		}
	}
	if l.held.full != nil {
		what := degradation{why: pausedByHeld}
		if l.backstop {
			what.queue = rabbit.BackstopQueue(l.c.cfg.Queue)
		}
		now.amiss[what] = l.held.full
	}
	l.c.holding.say(ctx, l.name, now)
}

// heldLimit is how long a delivery may be held: with HoldLimit at its ten minutes 15. It is looked at between two
// batches, each of which may take HoldLimit, and both together stay below RabbitMQ's consumer timeout of 30, which
// would end the session with everything in hand.
func (c Config) heldLimit() time.Duration { return c.HoldLimit * 3 / 2 }

// holdBack takes what was refused out of a batch that has come to its end, into memory of its own.
func (l *lane) holdBack(ctx context.Context, b *batch) {
	before := len(l.held.items)
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
		l.held.items = append(l.held.items, &own)
		l.unload(&own)
	}
	if len(l.held.items) == before {
		return
	}
	l.say(ctx)
	if l.held.next.IsZero() {
		l.held.pause = newBackOff()
		l.held.next = time.Now().Add(l.held.pause.NextBackOff())
	}
}

// unload lets go of the body of what cannot be sent as it is: such bodies are large, and would fill the lane's share of
// the memory until an operator comes. The row knows what is to become of it when it comes again.
func (l *lane) unload(it *item) {
	if what, _ := l.amiss(it); it.copy.unloaded || what.why != cannotBeSent {
		return
	}
	it.copy.unloaded = true
	for _, d := range it.withFollowers() {
		d.unload()
		l.sub.Unload(d.delivery.Tag)
	}
}

// room is how many deliveries the lane may take without ever holding more than half of its window, were all of them
// refused; 0 when that would be so few that the good ones among them crawled, or when what is held fills the lane's
// share of the memory: then it takes none until it holds less.
func (l *lane) room() int {
	if l.fillsShare() {
		return 0
	}
	half := max(1, l.sub.Window()/2)
	room := half
	for _, it := range l.held.items {
		if !it.copy.unloaded {
			room -= 1 + len(it.followers)
		}
	}
	if room < max(1, min(l.size, half)/8) {
		return 0
	}
	return min(room, l.size)
}

// fillsShare reports whether what is held leaves no room for anything more in the lane's share of the memory budget.
func (l *lane) fillsShare() bool { return len(l.held.items) > 0 && !l.sub.HasRoom() }

// standStill waits for the next try while the lane takes nothing new, and says why it does not.
func (l *lane) standStill(ctx context.Context) error {
	n := 0
	var refused error
	for _, it := range l.held.items {
		n += 1 + len(it.followers)
		if refused == nil && it.copy.refused != nil {
			refused = fmt.Errorf("queue %q: %w", l.queueOf(it), it.copy.refused)
		}
	}
	why := fmt.Errorf("%d deliveries of lane %s wait for their copies to be taken, and it takes no more", n, l.name)
	if l.fillsShare() {
		why = fmt.Errorf("%w: their bodies fill its share of the memory budget", why)
	}
	if refused != nil {
		why = fmt.Errorf("%w: %w", why, refused)
	}
	l.held.full = why
	l.say(ctx)
	if l.halfOpen.quarantine {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, calm, errCalm)
		defer cancel()
	}
	return l.sub.Rest(ctx, time.Until(l.held.next))
}

// tryHeld publishes refused copies again: of each queue one, and if it is taken twice as many, and so on, so that a
// full queue costs little and one that has room again is caught up with at once. Of what cannot be sent as it is only
// the rows are looked at: only an operator can change that, and it is tried when it is delivered again.
func (l *lane) tryHeld(ctx context.Context) error {
	l.remake(ctx)
	if slices.ContainsFunc(l.held.items, func(it *item) bool { return errors.Is(it.copy.refused, rabbit.ErrNacked) }) {
		l.c.publisher.Renew()
	}
	l.giveBackOld(ctx)
	by := map[degradation][]*item{}
	for _, it := range l.held.items {
		what, _ := l.amiss(it)
		if what.why != cannotBeSent || time.Since(it.copy.tried) >= l.c.cfg.GiveBackAfter {
			by[what] = append(by[what], it)
		}
	}
	before := len(l.held.items)
	for _, waiting := range by {
		for n, taken := 1, true; taken && len(waiting) > 0; n *= 2 {
			n = min(n, len(waiting))
			var err error
			if taken, err = l.trySome(ctx, waiting[:n]); err != nil {
				return err
			}
			waiting = waiting[n:]
		}
	}
	if len(l.held.items) < before {
		l.held.pause.Reset()
	}
	if l.held.next = time.Now().Add(l.held.pause.NextBackOff()); len(l.held.items) == 0 {
		l.held.next = time.Time{}
	}
	return nil
}

// trySome looks at the rows first, each time: what somebody else has ended or reopened meanwhile needs no letter any
// more. A copy of which nobody knows whether it arrived is held on, and published again at the next try, if its row
// still asks for it. It reports whether the queue took all copies.
func (l *lane) trySome(ctx context.Context, some []*item) (taken bool, err error) {
	if err := l.reconsider(ctx, some); err != nil {
		return false, err
	}
	unknown, _ := l.publish(ctx, pick(some, func(it *item) bool { // each keeps why
		return it.by > byAck && it.stage < stagePublished && !it.copy.unloaded
	}))
	if _, err := l.recordLetters(ctx, some); err != nil {
		return false, err
	}
	taken = len(unknown) == 0
	b := &batch{}
	for _, it := range some {
		it.carryFollowers()
		switch {
		case it.stage == stageDurable:
			l.unlock(ctx, &batch{all: []*item{it}, token: it.lock.holder})
			b.all = append(b.all, it.withFollowers()...)
		case it.copy.unloaded && it.copy.refused == nil: // somebody moved its row: let it be judged anew
			l.giveBack(ctx, it)
		default:
			taken = taken && it.copy.refused == nil
			l.unload(it)
			it.copy.tried = time.Now()
			l.held.items = append(slices.DeleteFunc(l.held.items, func(o *item) bool { return o == it }), it)
		}
	}
	err = l.acknowledge(b)
	l.held.items = slices.DeleteFunc(l.held.items, func(it *item) bool { return it.stage == stageAcked })
	l.say(ctx)
	return taken, err
}

// reconsider looks at items whose copies are not out in the light of their rows as they are now.
func (l *lane) reconsider(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	rows, err := l.rowsOf(ctx, items)
	if err != nil {
		return err
	}
	for _, it := range items {
		row, dies := rows[it.id.Identity], it.by == byDeadLetter
		if it.stage >= stagePublished || dies && row.Version == it.row.Version {
			continue // the row of a confirmed letter is still to be written
		}
		it.row = row
		switch verdict := decide(row, it.circumstances(), l.c.cfg.MaxAttempts); {
		case verdict == skipDone && !differs(it):
			it.ack(Duplicate)
		case verdict == skipDead && !differs(it):
			it.ack(DuplicateOfDead)
		case dies: // a copy sees what becomes of it; the copy of a letter stays the letter that it is
			l.leaseLost(it)
		}
	}
	return nil
}

// giveBackOld gives those back, alone, that would be taken away soon together with all others. It costs each a
// delivery up to RabbitMQ 4.2, which counts what is given back.
func (l *lane) giveBackOld(ctx context.Context) {
	for _, it := range slices.Clone(l.held.items) {
		if time.Since(it.delivery.Came) < l.c.cfg.heldLimit() {
			continue
		}
		_, why := l.amiss(it)
		l.c.log.WarnContext(ctx, "held too long, given back", "message", it.id.Identity, "queue", l.queueOf(it), "err", why)
		l.giveBack(ctx, it)
	}
}

func (l *lane) giveBack(ctx context.Context, it *item) {
	l.letGo(ctx, it)
	for _, d := range it.withFollowers() {
		_ = l.sub.Requeue(d.delivery.Tag, false) // a dead channel has given it back
	}
}

// letGo abandons what is held: it goes back to the broker.
func (l *lane) letGo(ctx context.Context, some ...*item) {
	some = slices.Clone(some)
	for _, it := range some {
		b := &batch{all: it.withFollowers(), token: it.lock.holder, failed: true}
		l.unlock(ctx, b)
		l.abandon(b)
	}
	l.held.items = slices.DeleteFunc(l.held.items, func(it *item) bool { return slices.Contains(some, it) })
	if len(l.held.items) == 0 {
		l.held.full = nil
	}
	l.say(ctx)
}

// remake makes queues that are gone once they are missing for as long as a lane waits for a dependency: whoever deleted
// one to make it anew has had the time.
func (l *lane) remake(ctx context.Context) {
	gone := slices.ContainsFunc(l.held.items, func(it *item) bool {
		return errors.Is(it.copy.refused, rabbit.ErrUnroutable) && time.Since(it.delivery.Came) > l.c.cfg.GiveBackAfter
	})
	if !gone || time.Since(l.held.made) < l.c.cfg.GiveBackAfter || l.declare == nil {
		return
	}
	l.held.made = time.Now()
	if err := l.declare(ctx); err != nil {
		l.c.log.WarnContext(ctx, "make the queues that are missing", "err", err)
	}
}
