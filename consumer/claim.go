package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

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
		t.claimant = t.owner() + dedup.MarkGroup // another lane may kill the process meanwhile
		if t.runsByItself() {                    // should it be given back unrun, the row still says what it may have done
			t.claimant = t.owner() + dedup.MarkAlone
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
	if err := t.makeRoom(ctx, 0); err != nil || len(t.items) == 0 { // given back, and not its lane's any more
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
		t.said = told{finish: away, err: errors.New("the leases of the claims have no room for another try")}
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
func (l *lane) roomFor(since time.Time, pause time.Duration) bool {
	return time.Since(since)+pause <= (l.c.cfg.Lease-l.c.cfg.HandlerTimeout)/2
}

// unclaim gives claims back, once: no attempt is counted. A row that is somebody else's by now says that a COMMIT of
// the effect without an answer was ours, or that the lease is lost.
func (t *attempt) unclaim(ctx context.Context, all []putBack) error {
	claims := make([]dedup.Failure, len(all))
	for i, p := range all {
		claims[i] = dedup.Failure{Claim: *p.it.claim, Cause: p.remark}
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
			it.row, it.claim, it.next = it.claim.GivenBack(), nil, runAlone
		case t.unknown && rows[it.id.Identity].Version == it.claim.Applied():
			t.lane.applied([]*item{it})
		default:
			t.leaseLost(it)
		}
	}
	return nil
}

// record writes down what became of the claims: success first, which nothing tells of but the service, then the failed
// attempts, then what was none.
func (t *attempt) record(ctx context.Context) error {
	if err := t.mark(ctx); err != nil {
		return err
	}
	if _, err := t.charge(ctx, t.blamed); err != nil {
		return err
	}
	held := slices.DeleteFunc(slices.Clone(t.back), func(p putBack) bool { return p.it.claim == nil })
	if len(held) > 0 {
		err := t.untilKnown(ctx, func(ctx context.Context) error { return t.unclaim(ctx, held) })
		if err != nil {
			return err
		}
	}
	return t.keepReasons(ctx, t.b)
}

// charge counts failed attempts and says what comes next. It is the one place that does, for claims and for who was
// blamed in the fast path, up to 200 in one commit. What failed for good needs no attempt: its row says dead when its
// letter is confirmed, and keepReasons ends its claim before that. Met are those without a claim that have a row by
// now: nothing is counted.
func (l *lane) charge(ctx context.Context, all []blamed) (met []*item, err error) {
	var counted []blamed
	for _, f := range all {
		if !IsPermanent(f.cause) {
			counted = append(counted, f)
			continue
		}
		if f.it.claim != nil {
			f.it.row = f.it.claim.Row()
		}
		f.it.bury(permanentReason(f.cause), f.cause.Error())
	}
	lost, err := moveRows(ctx, l, counted, l.counting, func(f blamed, row dedup.Row) {
		if f.it.row = row; row.Attempts >= l.c.cfg.MaxAttempts {
			f.it.bury(dedup.ReasonExhausted, f.cause.Error())
		} else {
			l.retry(f.it, Retried, l.c.cfg.RetryDelays[row.Attempts-1], f.cause.Error())
		}
	})
	for _, f := range lost {
		if f.it.claim != nil {
			l.leaseLost(f.it)
		} else {
			met = append(met, f.it)
		}
	}
	return met, err
}

// counting commits failed attempts: those of claims, or of messages that have none and no row.
func (l *lane) counting(some []blamed) transition {
	var claimed []dedup.Failure
	var fresh []dedup.Blamed
	for _, f := range some {
		if cause := f.cause.Error(); f.it.claim != nil {
			claimed = append(claimed, dedup.Failure{Claim: *f.it.claim, Cause: cause})
		} else {
			fresh = append(fresh, dedup.Blamed{Entry: f.it.fullEntry(), Cause: cause})
		}
	}
	owner := l.owner()
	return func(ctx context.Context) (rows []dedup.Row, errs []error) {
		if fresh != nil {
			rows, errs = l.c.records.BlameAll(ctx, fresh, owner)
		} else {
			rows, errs = l.c.records.FailAll(ctx, claimed)
		}
		if firstButLost(errs) == nil {
			l.c.at(PointFailed)
		}
		return rows, errs
	}
}

// owe notes what could not be brought to an end: what the service has applied is marked, and what is none's fault is
// given back, before anything new is consumed, so that it counts as no attempt. A failed one is left to its lease, so
// that it counts.
func (t *attempt) owe(err error) {
	if err == nil {
		return
	}
	for _, it := range t.applied {
		if it.outcome == 0 {
			t.c.debts.oweMark(*it.claim)
		}
	}
	open := slices.Clone(t.items)
	for _, p := range t.back {
		open = append(open, p.it)
	}
	for _, it := range open {
		switch {
		case it.outcome != 0:
		case it.claim != nil:
			t.c.debts.owe(*it.claim)
		case t.claimant != "": // it may be committed all the same
			t.c.debts.owe(dedup.Claim{
				Identity: it.id.Identity, Attempts: max(0, it.row.Attempts) + 1, Replays: it.row.Replays, Owner: t.claimant,
			})
		}
	}
}

// firstButLost is the first of errs that is another one than dedup.ErrLost, which is told of one row.
func firstButLost(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, dedup.ErrLost) {
			return err
		}
	}
	return nil
}
