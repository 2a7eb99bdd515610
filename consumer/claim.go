package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
)

// claim commits the rows of all as processing, with one more attempt each. Who is somebody else's by now leaves the
// group.
func (t *attempt) claim(ctx context.Context) (err error) {
	if len(t.items) == 0 {
		return nil
	}
	defer func() { t.owe(err) }()
	var lost []*item
	err = t.untilKnown(ctx, func(ctx context.Context) (err error) {
		lost, err = t.ask(ctx)
		return err
	})
	if err == nil && t.fresh && len(lost) > 0 {
		lost, err = t.lookAgain(ctx, t.b, lost, false) // left are those whose row is not there any more
	}
	t.leaseLost(lost...)
	return err
}

// ask asks for the claims once, in one commit; lost are those whose rows are not as they were read.
func (t *attempt) ask(ctx context.Context) (lost []*item, err error) {
	if t.claimant == "" {
		t.claimant = t.owner()
		if len(t.items) > 1 || !t.runsByItself() { // one of the group, or of another worker, may kill the process
			t.claimant += dedup.MarkGroup
		}
		if t.runsByItself() { // should it be given back unrun, the row still says what it may have done
			t.claimant += dedup.MarkAlone
		}
	}
	if !t.asked {
		t.since = time.Now()
	}
	claims, errs := t.askFor(ctx)
	if err := firstButLost(errs); err != nil {
		t.asked = t.asked || errors.Is(err, dedup.ErrUnknown)
		return nil, err
	}
	var claimed []*item
	for i, it := range t.items {
		if errs[i] != nil {
			lost = append(lost, it)
			continue
		}
		it.claim = &claims[i]
		it.msg.Attempt, it.msg.Replays = claims[i].Attempts, claims[i].Replays
		claimed = append(claimed, it)
	}
	t.items, t.claimant, t.asked = claimed, "", false
	if len(claimed) > 0 {
		t.c.at(PointClaimed)
	}
	return lost, nil
}

// askFor is a claim of one whatever its row says, of many without a row, or of many whose rows know their messages.
func (t *attempt) askFor(ctx context.Context) ([]dedup.Claim, []error) {
	return t.c.records.ClaimAll(ctx, eachOf(t.items, func(it *item) dedup.Claiming {
		if len(t.items) > 1 && it.row.Status != dedup.Absent {
			return dedup.Claiming{From: it.row}
		}
		e := it.fullEntry()
		return dedup.Claiming{From: it.row, Entry: &e}
	}), t.claimant)
}

// hold makes sure that the leases of the claims have room for one more try and for giving them back. One that has none
// is given back and asked for again. Many are not attempted together any more. It reports whether a try may be made.
func (t *attempt) hold(ctx context.Context) (free bool, err error) {
	if err := t.makeRoom(ctx, 0); err != nil || len(t.items) == 0 { // given back, and not its worker's any more
		return false, err
	}
	if t.items[0].claim == nil {
		ctx, cancel := context.WithTimeout(ctx, t.c.opTimeout)
		defer cancel()
		lost, err := t.ask(ctx)
		t.leaseLost(lost...)
		return err == nil && len(lost) == 0, err
	}
	if len(t.items) > 1 && !t.roomFor(t.since, 0) {
		t.said = decide.Told{End: decide.Away, Err: errors.New("the leases of the claims have no room for another try")}
		return false, nil
	}
	return true, nil
}

// makeRoom gives the claim of one back whose lease has no room for a try that begins after pause: a copy of its message
// would take it over and count an attempt that nobody made.
func (t *attempt) makeRoom(ctx context.Context, pause time.Duration) error {
	if !t.claimed || len(t.items) != 1 || t.items[0].claim == nil || t.roomFor(t.since, pause) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.c.opTimeout)
	defer cancel()
	err := t.unclaim(ctx, []putBack{{it: t.items[0]}})
	t.dropEnded()
	if err == nil {
		t.unknown = false // the row's lock was free: what had no answer is not committed
	}
	return err
}

// roomFor reports whether a try that begins after pause ends in good time before the lease of a claim does that began
// no sooner than since: half of what the lease has more than a try is left for giving the claim back.
func (w *worker) roomFor(since time.Time, pause time.Duration) bool {
	return time.Since(since)+pause <= (w.c.cfg.Lease-w.c.cfg.HandlerTimeout)/2
}

// unclaim gives claims back, once: no attempt is counted. A row that is somebody else's by now says that a COMMIT of
// the effect without an answer was ours, or that the lease is lost.
func (t *attempt) unclaim(ctx context.Context, all []putBack) error {
	claims := make([]dedup.Failure, len(all))
	for i, p := range all {
		claims[i] = dedup.Failure{Claim: *p.it.claim, Cause: p.remark, After: p.after}
	}
	errs := t.c.records.PutOffAll(ctx, claims)
	if err := firstButLost(errs); err != nil {
		return err
	}
	var lost []*item
	for i, p := range all {
		if errs[i] != nil {
			lost = append(lost, p.it)
		}
	}
	var rows map[dedup.Identity]dedup.Row
	if len(lost) > 0 && t.unknown {
		var err error
		if rows, err = t.c.records.LookUp(ctx, eachOf(lost, (*item).identity)); err != nil {
			return err
		}
	}
	for i, p := range all {
		switch it := p.it; {
		case errs[i] == nil:
			it.row, it.claim, it.next = it.claim.GivenBack(), nil, decide.RunAlone
		case t.unknown && rows[it.id.Identity].Version == it.claim.Applied():
			t.worker.applied([]*item{it})
		default:
			t.leaseLost(it)
		}
	}
	return nil
}
