package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// again is the slow path in groups: messages that failed before and are nobody's danger are claimed together, attempted
// together, and their failures recorded together. Whatever it meets besides the blame of single messages it leaves to
// alone, which knows what to do with one: then all that is left of the group is given back first, unrun.
type again struct {
	*worker
	settler *settler
}

// claimAtOnce is how many messages share a claim. A process that dies holding one for each lane leaves them to be taken
// over one at a time, which must be done within seconds.
const claimAtOnce = 200

// settleGroupsEvery bounds how long what is done waits for the groups behind it: settling once a batch costs RabbitMQ
// half of settling twice.
const settleGroupsEvery = time.Second

// 6. apply claims (one commit), runs the handler (one transaction) and records who failed (one commit).
func (g *again) apply(ctx context.Context, b *batch) error {
	if len(b.again) == 0 {
		return nil
	}
	defer g.c.metrics.phase(phaseSlow, time.Now())
	settled := time.Now()
	for len(b.again) > 0 {
		if err := g.enough(b); err != nil {
			return err
		}
		n := g.c.obstacles.most(min(len(b.again), claimAtOnce))
		rest, trial := g.stepAside(b.again[:n:n])
		b.again = b.again[n:]
		for _, some := range [][]*item{rest, trial} {
			if len(some) == 0 {
				continue
			}
			try := &groupTry{again: g, left: some}
			if err := try.run(ctx, b); err != nil {
				return err
			}
			b.alone = append(b.alone, try.left...)
		}
		if time.Since(settled) > settleGroupsEvery {
			if err := g.settler.settle(ctx, b); err != nil {
				return err
			}
			settled = time.Now()
		}
	}
	return nil
}

// groupTry is one group on its way.
type groupTry struct {
	*again
	left    []*item // claimed; at the end, those that go on alone
	since   time.Time
	blamed  []blamed
	excused []*item // blamed for what may be nobody's fault
	unknown unanswered
}

// blamed is a message and what the handler said of it in time.
type blamed struct {
	it    *item
	cause error
}

func (t *groupTry) run(ctx context.Context, b *batch) (err error) {
	turn := turn{worker: t.worker}
	defer turn.end()
	if err := turn.take(ctx, t.c.obstacles.unclear()); err != nil {
		return err
	}
	defer func() { t.owe(err) }()
	if err := t.claim(ctx); err != nil {
		return err
	}
	for whole := true; whole && len(t.left) > 0; {
		now, err := t.attempt(ctx)
		failure, failed := errors.AsType[*handlerError](err)
		switch {
		case err == nil:
			t.separate(now)
			t.appliedAll()
		case failed && !failure.late && blameOf(failure.err, len(t.left)) != nil:
			t.separate(blameOf(failure.err, len(t.left)))
		case isHard(ctx, err):
			return err
		default:
			t.separate(now)
			whole = false
		}
	}
	if t.left = append(t.left, t.excused...); len(t.left) > 0 {
		if err := t.giveBack(ctx); err != nil {
			return err
		}
	}
	return t.record(ctx, b)
}

// claim commits all rows as processing, with one more attempt each. Those that somebody else moved leave the group.
func (t *groupTry) claim(ctx context.Context) error {
	rows := make([]dedup.Row, len(t.left))
	for i, it := range t.left {
		rows[i] = it.row
	}
	owner := t.owner() + dedup.MarkGroup
	t.since = time.Now()
	var claims []dedup.Claim
	var errs []error
	err := t.untilKnown(ctx, func(ctx context.Context) error {
		claims, errs = t.c.records.ClaimAll(ctx, rows, owner)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil { // it may be committed all the same
		for _, row := range rows {
			t.c.debts.owe(dedup.Claim{
				Identity: row.Identity, Attempts: row.Attempts + 1, Replays: row.Replays, Owner: owner,
			})
		}
		return err
	}
	var claimed []*item
	for i, it := range t.left {
		if errs[i] != nil {
			t.leaseLost(it)
			continue
		}
		it.claim, it.claimedAt = &claims[i], t.since
		it.msg.Attempt, it.msg.Replays = claims[i].Attempts, claims[i].Replays
		claimed = append(claimed, it)
	}
	t.left = claimed
	t.c.at(PointClaimed)
	return nil
}

// attempt runs the handler once, with success of all whom it does not blame. No call starts unless the lease outlasts
// it.
func (t *groupTry) attempt(ctx context.Context) (blamed map[int]error, err error) {
	claims := make([]dedup.Claim, len(t.left))
	for i, it := range t.left {
		claims[i] = *it.claim
	}
	rows := marker{
		mark:   func(ctx context.Context, tx dedup.Execer) error { return t.c.records.Hold(ctx, tx, claims) },
		unmark: func(context.Context, dedup.Execer, map[int]error) error { return nil },
		seal: func(ctx context.Context, tx dedup.Execer, blamed map[int]error) error {
			var done []dedup.Claim
			for i, c := range claims {
				if blamed[i] == nil {
					done = append(done, c)
				}
			}
			return t.c.records.SuccessAll(ctx, tx, done)
		},
	}
	meetings := 0
	err = t.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		if !t.roomFor(t.since, 0) {
			return fmt.Errorf("%w: the lease of the claims has no room for another try", errComeBack)
		}
		now, inVain, err := t.c.obstacles.try(ctx, t.left, func(ctx context.Context) (map[int]error, error) {
			return t.c.effects.apply(ctx, messagesOf(t.left), rows)
		})
		if err == nil || errors.Is(err, dedup.ErrUnknown) {
			blamed = now
		}
		t.unknown.note(err)
		if meetings++; contended(err) && !inVain && meetings < maxMeetings {
			if errors.Is(err, dedup.ErrUnknown) { // should it be committed all the same, the claims are lost to the next try
				return undecided(err)
			}
			return err
		}
		if trouble, ok := errors.AsType[*troubleError](err); ok {
			return fmt.Errorf("%w: %w", errComeBack, trouble.err) // alone, who knows what it means
		}
		return err
	})
	return blamed, err
}

// separate takes the blamed out of the group.
func (t *groupTry) separate(by map[int]error) {
	var rest []*item
	for i, it := range t.left {
		switch err := by[i]; {
		case err == nil:
			rest = append(rest, it)
		case excuses(err):
			t.excused = append(t.excused, it)
		default:
			t.blamed = append(t.blamed, blamed{it, err})
		}
	}
	t.left = rest
}

func (t *groupTry) appliedAll() {
	for _, it := range t.left {
		t.c.suspects.clear(it.id.Identity)
	}
	t.applied(t.left)
	t.left = nil
}

// giveBack un-claims what is left, which goes on alone. A COMMIT whose answer was lost may have applied it.
func (t *groupTry) giveBack(ctx context.Context) error {
	claims := make([]dedup.Claim, len(t.left))
	for i, it := range t.left {
		claims[i] = *it.claim
	}
	var errs []error
	err := t.untilKnown(ctx, func(ctx context.Context) error {
		errs = t.c.records.UnclaimAll(ctx, claims)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil {
		return err
	}
	var lost, alone []*item
	for i, it := range t.left {
		if errs[i] != nil {
			lost = append(lost, it)
			continue
		}
		it.row, it.claim, it.next = it.claim.GivenBack(), nil, runAlone
		alone = append(alone, it)
	}
	if len(lost) > 0 {
		rows, err := t.rowsOf(ctx, lost)
		if err != nil {
			return err
		}
		for _, it := range lost {
			if t.unknown.lost && rows[it.id.Identity].Version == it.claim.Applied() {
				t.applied([]*item{it})
			} else {
				t.leaseLost(it)
			}
		}
	}
	t.left = alone
	return nil
}

// record writes down the failed attempts, and why, in one commit, and what failed for good in another.
func (t *groupTry) record(ctx context.Context, b *batch) error {
	if err := t.failAll(ctx, t.blamed); err != nil {
		return err
	}
	return t.settler.keepReasons(ctx, b)
}

// failAll commits the failed attempts of claimed messages together. What failed for good ends with its letter: its row
// says dead when that is confirmed, and before that keepReasons ends the claim.
func (w *worker) failAll(ctx context.Context, failed []blamed) error {
	var counted []*item
	var all []dedup.Failure
	for _, f := range failed {
		if IsPermanent(f.cause) {
			f.it.end(DeadLettered, deadLetter{permanentReason(f.cause), f.it.claim.Row(), f.cause.Error()})
			continue
		}
		counted = append(counted, f.it)
		all = append(all, dedup.Failure{Claim: *f.it.claim, Cause: f.cause.Error()})
	}
	if len(all) == 0 {
		return nil
	}
	var rows []dedup.Row
	var errs []error
	err := w.untilKnown(ctx, func(ctx context.Context) error {
		rows, errs = w.c.records.FailAll(ctx, all)
		return firstBut(errs, dedup.ErrLost)
	})
	if err != nil {
		return err
	}
	w.c.at(PointFailed)
	for i, it := range counted {
		if errs[i] != nil {
			w.leaseLost(it)
		} else {
			w.failedOnce(it, rows[i], all[i].Cause)
		}
	}
	return nil
}

// owe notes the claims that never ran to an end.
func (t *groupTry) owe(err error) {
	if err == nil {
		return
	}
	for _, f := range t.blamed {
		t.left = append(t.left, f.it)
	}
	for _, it := range append(t.left, t.excused...) {
		if it.claim != nil && it.outcome == 0 {
			t.c.debts.owe(*it.claim)
		}
	}
}

// isHard reports whether err ends the lane's work on the batch: the engine stops, or a dependency stayed away too long.
func isHard(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, errGiveBack)
}

// firstBut is the first of errs that is not told.
func firstBut(errs []error, told error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, told) {
			return err
		}
	}
	return nil
}
