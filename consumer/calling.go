package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// calling is the life of messages whose handler was made by [Calls]: claims (one commit), the calls, outside any
// transaction and at the same time, then what became of them (one commit each for success, failures and what is given
// back).
type calling struct {
	*worker
	together *together
	alone    *alone
	settler  *settler
	most     int // messages in the next group
}

// apply takes the messages that are nobody's danger, in groups of one kind: those without a row, and those with one.
func (g *calling) apply(ctx context.Context, b *batch) error {
	if len(b.fresh)+len(b.again) == 0 {
		return nil
	}
	defer g.c.metrics.phase(phaseSlow, time.Now())
	for len(b.fresh)+len(b.again) > 0 {
		probe, err := g.admitted(ctx, b)
		if err != nil {
			return err
		}
		from, claim := &b.fresh, (*callTry).claimFresh
		if len(b.fresh) == 0 {
			from, claim = &b.again, (*callTry).claimAgain
		}
		n := min(len(*from), g.most)
		if probe != nil {
			n = 1
		}
		try := &callTry{calling: g, left: (*from)[:n:n], probe: probe}
		*from = (*from)[n:]
		err = g.runGroup(ctx, b, try, claim)
		g.learn(try)
		b.again = append(b.again, try.left...) // which has rows now
		if err != nil {
			return err
		}
		if len(b.fresh)+len(b.again) > 0 {
			if err := g.settler.settle(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// runGroup runs a group while no lane takes an expired lease over.
func (g *calling) runGroup(ctx context.Context, b *batch, try *callTry, claim claimFunc) error {
	turn := turn{worker: g.worker}
	defer turn.end()
	if err := turn.take(ctx, false); err != nil {
		try.unused()
		return err
	}
	return try.run(ctx, b, claim)
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
func (g *calling) learn(t *callTry) {
	took := time.Since(t.since)
	switch {
	case t.probe != nil || t.made == 0:
	case len(t.left) > 0 || took > groupTime:
		g.most = int(float64(t.made) * min(1, groupTime.Seconds()/took.Seconds()))
	default:
		g.most = 2 * g.most
	}
	share := (g.c.service.o.Concurrency + g.c.cfg.Lanes - 1) / g.c.cfg.Lanes
	g.most = min(max(g.most, share), claimAtOnce)
}

// applyAlone takes what may be a danger: one message, one claim, one call.
func (g *calling) applyAlone(ctx context.Context, b *batch) error {
	if len(b.alone) == 0 {
		return nil
	}
	defer g.c.metrics.phase(phaseSlow, time.Now())
	settled := time.Now()
	turn := turn{worker: g.worker}
	defer turn.end()
	for len(b.alone) > 0 {
		it := b.alone[0]
		if err := g.attempt(ctx, b, it, &turn); err != nil {
			return err
		}
		if it.outcome == 0 { // given back, as its lease has no room: the next claim is another
			continue
		}
		b.alone = b.alone[1:]
		if time.Since(settled) > settleEvery {
			turn.end()
			if err := g.settler.settle(ctx, b); err != nil {
				return err
			}
			settled = time.Now()
		}
	}
	return nil
}

// attempt is [alone.attempt] for a call.
func (g *calling) attempt(ctx context.Context, b *batch, it *item, turn *turn) error {
	if g.c.service.away() {
		turn.end() // the others may be where the service is not asked for
	}
	probe, err := g.admitted(ctx, b)
	if err != nil {
		return err
	}
	try := &callTry{calling: g, probe: probe, left: []*item{it}}
	if err := turn.take(ctx, it.runsByItself()); err != nil {
		try.unused()
		return err
	}
	if err := g.alone.prepare(ctx, it); err != nil || it.outcome != 0 {
		try.unused()
		return err
	}
	return try.run(ctx, b, (*callTry).claimAlone)
}

// admitted waits until a call may be made. While the service is away the lane keeps its batch, with no claim, and
// one lane asks with one message; when that lasts too long the batch is given back.
func (g *calling) admitted(ctx context.Context, b *batch) (probe ticket, err error) {
	for began := time.Now(); ; {
		if err := g.enough(b); err != nil {
			return nil, err
		}
		g.clock.tick()
		if probe, ok := g.c.service.admit(); ok {
			return probe, nil
		}
		if time.Since(began) > g.patience() {
			return nil, fmt.Errorf("%w: the service is away", errGiveBack)
		}
		g.clock.rest()
		if !g.c.service.wait(ctx, g.quit) && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// callTry is one group on its way.
type callTry struct {
	*calling
	probe ticket  // for the one call that asks whether the service is back; nil: each call asks for its own
	left  []*item // claimed; at the end, those that were not called and go on
	since time.Time
	made  int // calls

	applied []*item
	failed  []blamed
	back    []putBack
}

// claimFunc commits the claims of a group; who is claimed elsewhere leaves it.
type claimFunc func(*callTry, context.Context, *batch) error

// putBack is a message that comes again without an attempt.
type putBack struct {
	it    *item
	after time.Duration
	cause error
}

// run claims, calls and records. Whoever is claimed elsewhere leaves the group.
func (t *callTry) run(ctx context.Context, b *batch, claim claimFunc) (err error) {
	defer t.unused()
	if err := claim(t, ctx, b); err != nil {
		return err
	}
	defer func() { t.owe(err) }()
	if err := t.callAll(ctx); err != nil {
		return err
	}
	t.c.at(PointEffect)
	return t.record(ctx, b)
}

// unused gives a ticket back that no call was made with.
func (t *callTry) unused() {
	if t.probe != nil && t.made == 0 {
		t.probe(errNotCalled)
	}
}

// claimFresh claims messages without a row. Who has one by now goes its row's way.
func (t *callTry) claimFresh(ctx context.Context, b *batch) error {
	entries := make([]dedup.Entry, len(t.left))
	for i, it := range t.left {
		entries[i] = it.fullEntry()
	}
	met, err := t.claimTogether(ctx, func(ctx context.Context, owner string) ([]dedup.Claim, []error) {
		return t.c.records.ClaimNew(ctx, entries, owner)
	})
	if err != nil || len(met) == 0 {
		return err
	}
	gone, err := t.together.lookAgain(ctx, b, met, false)
	for _, it := range gone { // the row that was met is not there any more
		t.leaseLost(it)
	}
	return err
}

// claimAgain claims messages that have a row.
func (t *callTry) claimAgain(ctx context.Context, _ *batch) error {
	rows := make([]dedup.Row, len(t.left))
	for i, it := range t.left {
		rows[i] = it.row
	}
	lost, err := t.claimTogether(ctx, func(ctx context.Context, owner string) ([]dedup.Claim, []error) {
		return t.c.records.ClaimAll(ctx, rows, owner)
	})
	for _, it := range lost {
		t.leaseLost(it)
	}
	return err
}

// claimTogether commits all claims; lost are those whose rows were not as they were read.
func (t *callTry) claimTogether(
	ctx context.Context, claim func(context.Context, string) ([]dedup.Claim, []error),
) (lost []*item, err error) {
	owner := t.owner() + dedup.MarkGroup
	t.since = time.Now()
	var claims []dedup.Claim
	var errs []error
	err = t.untilKnown(ctx, func(ctx context.Context) error {
		claims, errs = claim(ctx, owner)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil { // it may be committed all the same
		for _, it := range t.left {
			t.alone.forgo(it, claiming{owner: owner})
		}
		return nil, err
	}
	var claimed []*item
	for i, it := range t.left {
		if errs[i] != nil {
			lost = append(lost, it)
			continue
		}
		it.claim, it.claimedAt = &claims[i], t.since
		it.msg.Attempt, it.msg.Replays = claims[i].Attempts, claims[i].Replays
		claimed = append(claimed, it)
	}
	t.left = claimed
	t.c.at(PointClaimed)
	return lost, nil
}

// claimAlone claims one message, whatever its row says.
func (t *callTry) claimAlone(ctx context.Context, _ *batch) error {
	it := t.left[0]
	if err := t.alone.claim(ctx, it); err != nil || it.outcome != 0 {
		t.left = nil
		return err
	}
	t.since = it.claimedAt
	if t.mayKill(it) && it.rejected == nil {
		if err := t.validate(ctx, &it.msg)[0]; err != nil {
			it.rejected = &unreadable{dedup.ReasonMalformed, err}
		}
	}
	if it.rejected != nil {
		t.failed, t.left = append(t.failed, blamed{it, it.rejected.asError()}), nil
	}
	return nil
}

// callAll calls for one message after the other, many at the same time, as long as the lease of the claims has room for
// one more call, the service is there and nobody wants to stop. It returns when all calls have.
func (t *callTry) callAll(ctx context.Context) error {
	service := t.c.service
	outs := make([]called, len(t.left))
	var wg sync.WaitGroup
	for _, it := range t.left {
		done, free, ok := t.start(ctx)
		if !ok {
			break
		}
		at := t.made
		t.made++
		wg.Go(func() {
			defer free()
			outs[at] = service.call(ctx, it.msg, done)
			t.clock.tick()
		})
	}
	wg.Wait()
	all := t.left
	t.left = all[t.made:]
	for i, it := range all[:t.made] {
		t.sort(it, outs[i])
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// start waits for room among the calls of the process.
func (t *callTry) start(ctx context.Context) (done ticket, free func(), ok bool) {
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

// sort files a message by what its call came to.
func (t *callTry) sort(it *item, out called) {
	switch out.kind {
	case CallApplied:
		t.applied = append(t.applied, it)
	case CallFailed, CallPermanent:
		t.failed = append(t.failed, blamed{it, out.err})
	case callStopped:
		t.left = append(t.left, it)
	default:
		t.back = append(t.back, putBack{it, out.after, out.err})
	}
}

// record writes down what became of the calls: success first, because nothing tells of it but the service.
func (t *callTry) record(ctx context.Context, b *batch) error {
	if err := t.mark(ctx); err != nil {
		return err
	}
	t.suspect()
	if err := t.fail(ctx); err != nil {
		return err
	}
	if err := t.giveBack(ctx); err != nil {
		return err
	}
	return t.settler.keepReasons(ctx, b)
}

// mark commits the success of all whom the service has applied.
func (t *callTry) mark(ctx context.Context) error {
	if len(t.applied) == 0 {
		return nil
	}
	claims := claimsOf(t.applied)
	var errs []error
	err := t.untilKnown(ctx, func(ctx context.Context) error {
		errs = t.c.records.MarkAll(ctx, claims)
		return firstBut(errs, dedup.ErrLost)
	})
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
	t.applied = nil
	t.worker.applied(done)
	return nil
}

// suspect finds those who meet an absent service again and again while others succeed: it is their failure.
func (t *callTry) suspect() {
	var back []putBack
	for _, p := range t.back {
		if isCall(p.cause, CallLater) {
			back = append(back, p)
			continue
		}
		if met, blame := t.c.suspects.blamed(p.it.id.Identity, t.c.commits.Load()); blame {
			err := fmt.Errorf("%d times, while other messages succeeded: %w", met, p.cause)
			t.failed = append(t.failed, blamed{p.it, err})
			continue
		}
		back = append(back, p)
	}
	t.back = back
}

// fail commits the failed attempts. Where that fails their leases end, and the attempts count.
func (t *callTry) fail(ctx context.Context) error {
	failed := t.failed
	t.failed = nil
	return t.failAll(ctx, failed)
}

// giveBack un-claims what comes again without an attempt, and what was not called.
func (t *callTry) giveBack(ctx context.Context) error {
	items := make([]*item, 0, len(t.back)+len(t.left))
	all := make([]dedup.Failure, 0, cap(items))
	for _, p := range t.back {
		items = append(items, p.it)
		all = append(all, dedup.Failure{Claim: *p.it.claim, Cause: p.cause.Error()})
	}
	for _, it := range t.left {
		items = append(items, it)
		all = append(all, dedup.Failure{Claim: *it.claim})
	}
	if len(items) == 0 {
		return nil
	}
	var errs []error
	err := t.untilKnown(ctx, func(ctx context.Context) error {
		errs = t.c.records.PutOffAll(ctx, all)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil {
		return err
	}
	for i, it := range items {
		if errs[i] != nil {
			t.leaseLost(it)
			continue
		}
		it.row, it.claim = all[i].Claim.GivenBack(), nil
		if it.next != takeOver {
			it.next = runAlone
		}
	}
	for _, p := range t.back {
		if p.it.outcome == 0 {
			if p.after == 0 && isCall(p.cause, CallLater) { // as long as it has waited already
				p.after = p.it.row.Age
			}
			p.it.end(InProgress, retryAfter{
				delay: fitUp(t.c.cfg.RetryDelays, p.after), attempt: p.it.row.Attempts, cause: p.cause.Error(),
			})
		}
	}
	t.back = nil
	var left []*item
	for _, it := range t.left {
		if it.outcome == 0 {
			left = append(left, it)
		}
	}
	t.left = left
	return nil
}

// owe notes what could not be written down: what the service has applied is marked, and what never came to an end is
// given back, before anything new is consumed. A failed attempt is left to its lease, so that it counts.
func (t *callTry) owe(err error) {
	if err == nil {
		return
	}
	for _, it := range t.applied {
		if it.outcome == 0 {
			t.c.debts.oweMark(*it.claim)
		}
	}
	for _, p := range t.back {
		if p.it.claim != nil && p.it.outcome == 0 {
			t.c.debts.owe(*p.it.claim)
		}
	}
	for _, it := range t.left {
		if it.claim != nil && it.outcome == 0 {
			t.c.debts.owe(*it.claim)
		}
	}
}

func claimsOf(items []*item) []dedup.Claim {
	claims := make([]dedup.Claim, len(items))
	for i, it := range items {
		claims[i] = *it.claim
	}
	return claims
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
