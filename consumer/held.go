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

// heldItem is a delivery whose copy its queue refuses: it is full, or gone. It stays unacked, with its followers, while
// its lane goes on with others.
type heldItem struct {
	*item                // in memory of its own: that of its batch is used again
	token    string      // of its lock
	queue    string      // that refuses the copy
	since    time.Time   // it came to this process
	tried    time.Time   // when its copy was refused last
	counted  degradation // under which it is counted in holding
	letter   bool        // a letter was refused, not a retry copy
	unloaded bool        // its body is in memory no more: it must come again to be published
}

// why is what keeps its copy from its queue: a refusal, or that nobody knows whether it arrived. Nil when no try of
// this copy has failed: it is another one than before.
func (h *heldItem) why() error {
	switch {
	case h.copy.refused == nil:
		return h.copy.unsure
	case h.copy.unsure == nil:
		return h.copy.refused
	}
	return fmt.Errorf("%w; and another try: %w", h.copy.refused, h.copy.unsure)
}

// amiss is what its copy meets; the zero value when that is nothing.
func (h *heldItem) amiss() degradation {
	switch why := h.why(); {
	case why == nil:
		return degradation{}
	case errors.Is(why, rabbit.ErrUnsendable):
		return degradation{cannotBeSent, h.queue}
	}
	return degradation{refusesCopies, h.queue}
}

// advice says what to do about it.
func (h *heldItem) advice() error {
	if h.amiss().why == cannotBeSent {
		return fmt.Errorf("RabbitMQ takes no copy of this message as it is: it is held, and tried when it comes "+
			"again, the rest flows; raise RabbitMQ's max_message_size or frame_max, as the answer says: %w", h.why())
	}
	return fmt.Errorf("what goes there is held until the queue takes it, the rest flows; "+
		"is it full (rabbitmqctl list_policies), gone, or forbidden (doctor)? %w", h.why())
}

// deliveries are the delivery and its followers.
func (h *heldItem) deliveries() []*item { return append([]*item{h.item}, h.followers...) }

// heldBack is what a lane holds back, in the order in which the copies are tried: the ones refused last are at the end.
type heldBack struct {
	*worker

	items    []*heldItem
	unloaded int // of them without their bodies
	pause    *backoff.ExponentialBackOff
	next     time.Time // of the next try; zero while nothing is held
	made     time.Time // when the lane last asked for the queues that are missing
}

// holding is what all lanes hold.
type holding struct {
	health *health

	mu         sync.Mutex
	letters    map[dedup.Identity]int // whose letters are held; guarded by mu
	refused    map[degradation]int    // refused copies by why and queue; guarded by mu
	full       map[string]*worker     // those that take nothing new, by name; guarded by mu
	deliveries int                    // guarded by mu
}

func newHolding(h *health) *holding {
	return &holding{health: h, letters: map[dedup.Identity]int{}, refused: map[degradation]int{},
		full: map[string]*worker{}}
}

// has reports whether some lane of this process holds a letter of this identity.
func (g *holding) has(k dedup.Identity) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.letters[k] > 0
}

// size is how many deliveries are held.
func (g *holding) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.deliveries
}

func (g *holding) add(ctx context.Context, h *heldItem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.letter {
		g.letters[h.id.Identity]++
	}
	g.deliveries += len(h.deliveries())
	g.count(ctx, h, h.amiss())
}

func (g *holding) remove(ctx context.Context, h *heldItem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.letter {
		if g.letters[h.id.Identity]--; g.letters[h.id.Identity] == 0 {
			delete(g.letters, h.id.Identity)
		}
	}
	g.deliveries -= len(h.deliveries())
	g.count(ctx, h, degradation{})
}

// again takes in that a copy was refused once more, perhaps for another reason or by another queue.
func (g *holding) again(ctx context.Context, h *heldItem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count(ctx, h, h.amiss())
}

// count says what is amiss now, if anything is, and when nothing else is amiss in the way that it was before. The
// caller holds mu.
func (g *holding) count(ctx context.Context, h *heldItem, now degradation) {
	was := h.counted
	if h.counted = now; was == now {
		return
	}
	if was != (degradation{}) {
		if g.refused[was]--; g.refused[was] == 0 {
			delete(g.refused, was)
			g.health.sound(ctx, was.why, was.queue)
		}
	}
	if now != (degradation{}) {
		g.refused[now]++
		g.health.degraded(ctx, now.why, now.queue, h.advice())
	}
}

// stand says that a lane takes nothing new, or does again. The backstop's is not what the engine is there for.
func (g *holding) stand(ctx context.Context, l *worker, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, stood := g.full[l.name]
	if why == nil && !stood {
		return
	}
	if g.full[l.name] = l; why == nil {
		delete(g.full, l.name)
	}
	backstop := rabbit.BackstopQueue(l.c.cfg.Queue)
	switch {
	case l.backstop && why != nil:
		g.health.degraded(ctx, pausedByHeld, backstop, why)
	case l.backstop:
		g.health.sound(ctx, pausedByHeld, backstop)
	case why != nil:
		g.health.missing(ctx, pausedByHeld, why)
	case !g.paused():
		g.health.back(ctx, pausedByHeld)
	}
}

// paused reports whether a lane of the main queue takes nothing new. The caller holds mu.
func (g *holding) paused() bool {
	for _, l := range g.full {
		if !l.backstop {
			return true
		}
	}
	return false
}

// heldLimit is how long a delivery may be held: with HoldLimit at its ten minutes 15. It is looked at between two
// batches, each of which may take HoldLimit, and both together stay below RabbitMQ's consumer timeout of 30, which
// would end the session with everything in hand.
func (c Config) heldLimit() time.Duration { return c.HoldLimit * 3 / 2 }

// hold takes what was refused out of a batch that has come to its end.
func (s *heldBack) take(ctx context.Context, b *batch) {
	for _, it := range b.all {
		if it.copy.refused == nil {
			continue
		}
		own := *it
		own.followers = make([]*item, len(it.followers))
		for i, f := range it.followers {
			follower := *f
			own.followers[i] = &follower
		}
		_, letter := it.settle.(deadLetter)
		h := &heldItem{item: &own, token: b.token, queue: s.queueOf(it), since: b.since, tried: time.Now(),
			letter: letter}
		s.items = append(s.items, h)
		s.withheld += len(h.deliveries())
		s.c.holding.add(ctx, h)
	}
	for _, h := range s.items {
		s.unload(h)
	}
	if len(s.items) > 0 && s.next.IsZero() {
		s.pause = newBackOff()
		s.next = time.Now().Add(s.pause.NextBackOff())
	}
}

// unload lets go of the body of what cannot be sent as it is: such bodies are large, and would fill the lane's share of
// the memory until an operator comes. The row knows what is to become of it when it comes again.
func (s *heldBack) unload(h *heldItem) {
	if h.unloaded || h.amiss().why != cannotBeSent {
		return
	}
	h.unloaded = true
	s.unloaded += len(h.deliveries())
	for _, it := range h.deliveries() {
		it.unload()
		s.sub.Unload(it.delivery.Tag)
	}
}

// room is how many deliveries the lane may take without ever holding more than half of its window, were all of them
// refused; 0 when that would be so few that the good ones among them crawled, or when what is held fills the lane's
// share of the memory: then it takes none until it holds less.
func (s *heldBack) room() int {
	if s.fillsShare() {
		return 0
	}
	half := max(1, s.sub.Window()/2)
	room := half - (s.withheld - s.unloaded)
	if room < max(1, min(s.size, half)/8) {
		return 0
	}
	return min(room, s.size)
}

// heldFills reports whether what is held leaves no room for anything more in the lane's share of the memory budget.
func (s *heldBack) fillsShare() bool { return len(s.items) > 0 && !s.sub.HasRoom() }

// standStill waits for the next try while the lane takes nothing new, and says why it does not.
func (s *heldBack) standStill(ctx context.Context) error {
	why := fmt.Errorf("%d deliveries of lane %s wait for their copies to be taken, and it takes no more", s.withheld,
		s.name)
	if s.fillsShare() {
		why = fmt.Errorf("%w: their bodies fill its share of the memory budget", why)
	}
	for _, h := range s.items {
		if h.copy.refused != nil {
			why = fmt.Errorf("%w: queue %q: %w", why, h.queue, h.copy.refused)
			break
		}
	}
	s.c.holding.stand(ctx, s.worker, why)
	if s.halfOpen.quarantine {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, calm, errCalm)
		defer cancel()
	}
	return s.sub.Rest(ctx, time.Until(s.next))
}

// tryHeld publishes refused copies again: of each queue one, and if it is taken twice as many, and so on, so that a
// full queue costs little and one that has room again is caught up with at once. Of what cannot be sent as it is only
// the rows are looked at: only an operator can change that, and it is tried when it is delivered again.
func (s *heldBack) tryAgain(ctx context.Context) error {
	s.remake(ctx)
	if slices.ContainsFunc(s.items, func(h *heldItem) bool { return errors.Is(h.copy.refused, rabbit.ErrNacked) }) {
		s.c.publisher.Renew()
	}
	s.giveBackOld(ctx)
	by := map[degradation][]*heldItem{}
	var all []degradation
	for _, h := range s.items {
		why := h.amiss()
		if why.why == cannotBeSent && time.Since(h.tried) < s.c.cfg.GiveBackAfter {
			continue
		}
		if by[why] == nil {
			all = append(all, why)
		}
		by[why] = append(by[why], h)
	}
	before := len(s.items)
	for _, why := range all {
		waiting := by[why]
		for n := 1; len(waiting) > 0; n *= 2 {
			some := waiting[:min(n, len(waiting))]
			waiting = waiting[len(some):]
			taken, err := s.trySome(ctx, some)
			if err != nil {
				return err
			}
			if !taken {
				break
			}
		}
	}
	switch {
	case len(s.items) == 0:
		s.next = time.Time{}
		return nil
	case len(s.items) < before:
		s.pause.Reset()
	}
	s.next = time.Now().Add(s.pause.NextBackOff())
	return nil
}

// trySome looks at the rows first, each time: what somebody else has ended or reopened meanwhile needs no letter any
// more. A copy of which nobody knows whether it arrived is held on, and published again at the next try, if its row
// still asks for it. It reports whether the queue took all copies.
func (s *heldBack) trySome(ctx context.Context, some []*heldItem) (taken bool, err error) {
	items := make([]*item, len(some))
	for i, h := range some {
		items[i] = h.item
	}
	if err := s.reconsiderAll(ctx, items); err != nil {
		return false, err
	}
	var waiting []*item
	for i, it := range items {
		if _, acked := it.settle.(ack); !acked && it.stage < stagePublished && !some[i].unloaded {
			waiting = append(waiting, it)
		}
	}
	unknown, _ := s.publish(ctx, waiting) // each keeps why
	if _, err := s.recordLetters(ctx, items); err != nil {
		return false, err
	}
	taken = len(unknown) == 0
	for _, h := range some {
		it := h.item
		it.carryFollowers()
		if it.stage == stageDurable {
			if err := s.end(ctx, h); err != nil {
				return false, err
			}
			continue
		}
		if h.unloaded && it.copy.refused == nil { // somebody moved its row: let it be judged anew
			s.giveBack(ctx, h)
			continue
		}
		taken = taken && it.copy.refused == nil
		s.unload(h)
		h.queue, h.tried = s.queueOf(it), time.Now()
		s.c.holding.again(ctx, h)
		s.items = append(slices.DeleteFunc(s.items, func(o *heldItem) bool { return o == h }), h)
	}
	return taken, nil
}

// reconsiderAll looks at items whose copies are not out in the light of their rows as they are now.
func (w *worker) reconsiderAll(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	rows, err := w.rowsOf(ctx, items)
	if err != nil {
		return err
	}
	for _, it := range items {
		w.reconsider(it, rows[it.id.Identity])
	}
	return nil
}

// reconsider looks at a held delivery in the light of its row as it is now.
func (w *worker) reconsider(it *item, row dedup.Row) {
	it.row = row
	letter, dies := it.settle.(deadLetter)
	verdict := decide(row, it.circumstances(), w.c.cfg.MaxAttempts)
	switch {
	case it.stage >= stagePublished: // the row of a confirmed letter is still to be written
	case dies && row.Version == letter.from.Version:
	case verdict == skipDone && !differs(it):
		it.end(Duplicate, ack{})
	case verdict == skipDead && !differs(it):
		it.end(DuplicateOfDead, ack{})
	case dies: // a copy sees what becomes of it; the copy of a letter stays the letter that it is
		w.leaseLost(it)
	}
}

// endHeld acks a held delivery and its followers, one by one: older ones may still be held.
func (s *heldBack) end(ctx context.Context, h *heldItem) error {
	s.drop(ctx, h)
	s.unlock(ctx, &batch{all: []*item{h.item}, token: h.token})
	all := h.deliveries()
	for _, it := range all {
		if err := s.sub.Ack(it.delivery.Tag, false); err != nil {
			s.abandon(&batch{all: all}) // nobody else knows them any more
			return fmt.Errorf("ack %v: %w", it.id.Identity, err)
		}
		s.acked(it)
	}
	s.c.at(PointAcked)
	return nil
}

func (s *heldBack) drop(ctx context.Context, h *heldItem) {
	s.items = slices.DeleteFunc(s.items, func(o *heldItem) bool { return o == h })
	s.withheld -= len(h.deliveries())
	if h.unloaded {
		s.unloaded -= len(h.deliveries())
	}
	h.copy.refused, h.copy.unsure = nil, nil
	s.c.holding.remove(ctx, h)
}

// giveBackOld gives those back, alone, that would be taken away soon together with all others. It costs each a
// delivery up to RabbitMQ 4.2, which counts what is given back.
func (s *heldBack) giveBackOld(ctx context.Context) {
	for _, h := range slices.Clone(s.items) {
		if time.Since(h.since) < s.c.cfg.heldLimit() {
			continue
		}
		s.c.log.WarnContext(ctx, "held too long, given back", "message", h.id.Identity, "queue", h.queue, "err", h.why())
		s.giveBack(ctx, h)
	}
}

func (s *heldBack) giveBack(ctx context.Context, h *heldItem) {
	for _, it := range s.forget(ctx, h) {
		_ = s.sub.Requeue(it.delivery.Tag, false) // a dead channel has given it back
	}
}

// letGo ends what a lane holds when the lane ends: the broker gives it to another.
func (s *heldBack) letGo(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	for _, h := range slices.Clone(s.items) {
		s.forget(ctx, h)
	}
	s.next = time.Time{}
	s.c.holding.stand(ctx, s.worker, nil)
}

// forget abandons what is held: it goes back to the broker.
func (s *heldBack) forget(ctx context.Context, h *heldItem) []*item {
	s.drop(ctx, h)
	b := &batch{all: h.deliveries(), token: h.token, failed: true}
	s.unlock(ctx, b)
	s.abandon(b)
	return b.all
}

// remake makes queues that are gone once they are missing for as long as a lane waits for a dependency: whoever deleted
// one to make it anew has had the time.
func (s *heldBack) remake(ctx context.Context) {
	gone := slices.ContainsFunc(s.items, func(h *heldItem) bool {
		return errors.Is(h.copy.refused, rabbit.ErrUnroutable) && time.Since(h.since) > s.c.cfg.GiveBackAfter
	})
	if !gone || time.Since(s.made) < s.c.cfg.GiveBackAfter || s.declare == nil {
		return
	}
	s.made = time.Now()
	if err := s.declare(ctx); err != nil {
		s.c.log.WarnContext(ctx, "make the queues that are missing", "err", err)
	}
}
