package dedup

import (
	"context"
	"fmt"
	"strings"
)

// Claim takes a row to processing with one more attempt, and commits that. From is the row as LookUp gave it: absent,
// or failed and due with attempts left, or processing with an expired lease and attempts left; the database checks that
// again. The owner must be unlike that of every other claim ever made (1 to MaxOwner bytes).
//
// ErrLost: somebody else was faster, or it is not time, or the row is failed and marked with MarkAlone and the owner is
// not. ErrUnknown: call again with the same owner; a claim found to be ours is ours. Claim keeps the entry in the row
// where the row does not have it yet.
func (l *Log) Claim(ctx context.Context, from Row, e Entry, owner string) (Claim, error) {
	c, err := l.claiming(from, &e, owner)
	if err != nil {
		return Claim{}, err
	}
	if err := l.move(ctx, c); err != nil {
		return Claim{}, err
	}
	return claimOf(from, c), nil
}

func (l *Log) claiming(from Row, e *Entry, owner string) (*change, error) {
	c, err := l.begin(actionClaim, from)
	if err != nil {
		return nil, err
	}
	if err := validateOwner(owner); err != nil {
		return nil, fmt.Errorf("claim %v: %w", from.Identity, err)
	}
	c.to = Version{Processing, 1, 0, owner}
	if from.Status != Absent {
		c.to = Version{Processing, from.Attempts + 1, from.Replays, owner}
	}
	none := Reason("") // a reason noted by Exhaust is void when MAX_ATTEMPTS was raised since
	c.own, c.entry, c.reason = true, e, &none
	c.silent = from.PutOff()
	return c, nil
}

// claimOf is the claim that a change made of a row.
func claimOf(from Row, c *change) Claim {
	hash := from.BodyHash
	if hash == nil && c.entry != nil && c.entry.BodyHash != ([32]byte{}) {
		hash = c.entry.BodyHash[:]
	}
	return Claim{
		Identity: from.Identity, Attempts: c.to.Attempts, Replays: c.to.Replays, Owner: c.to.Owner, BodyHash: hash,
		Remark: from.Remark, at: from.At, age: from.Age,
	}
}

// Success marks a claim's effect as applied, in the transaction of the effect. The row drops body and properties.
// ErrLost: the lease was over and somebody else has the row. Whatever the error, roll the transaction back.
func (l *Log) Success(ctx context.Context, tx Execer, claim Claim) error {
	c, err := l.succeeding(claim)
	if err != nil {
		return err
	}
	if err := l.apply(ctx, tx, c); err != nil {
		return fmt.Errorf("success of %v: %w", claim.Identity, err)
	}
	return nil
}

func (l *Log) succeeding(claim Claim) (*change, error) {
	c, err := l.begin(actionSuccess, claim.Row())
	if err != nil {
		return nil, err
	}
	c.to = claim.Applied()
	c.dropBody = true
	return c, nil
}

// Fail records that a claim's attempt failed, and why. The row is due after the delay of its attempts; when none is
// left it waits for Dead. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) Fail(ctx context.Context, claim Claim, cause string) (Row, error) {
	rows, errs := l.FailAll(ctx, []Failure{{claim, cause}})
	return rows[0], errs[0]
}

func (l *Log) failing(claim Claim, cause string) (*change, error) {
	c, err := l.begin(actionFail, claim.Row())
	if err != nil {
		return nil, err
	}
	c.to = Version{Failed, claim.Attempts, claim.Replays, claim.Owner}
	c.own = true
	c.why = cutText(cause, MaxRemark)
	c.remark = &c.why
	return c, nil
}

// Unclaim gives a claim back that never ran to an end through no fault of its message: no attempt is counted, and the
// row is due at once. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) Unclaim(ctx context.Context, claim Claim) error {
	return l.UnclaimAll(ctx, []Claim{claim})[0]
}

// unclaiming is for a claim that never ran, or with a cause for one that was put off. How long a message is put off is
// to be seen, so its row gets back the time that it had, and however often that happens its story has one line of it.
func (l *Log) unclaiming(claim Claim, cause string) (*change, error) {
	c, err := l.begin(actionUnclaim, claim.Row())
	if err != nil {
		return nil, err
	}
	c.to = Version{Failed, claim.Attempts - 1, claim.Replays, claim.Owner}
	c.own = true
	c.backdate = l.delay(c.to.Attempts)
	if cause == "" {
		return c, nil
	}
	c.why = cutText(putOff+cause, MaxRemark)
	c.remark = &c.why
	c.silent = strings.HasPrefix(claim.Remark, putOff)
	if at := claim.at.UnixMicro(); !claim.at.IsZero() {
		c.at = &at
	} else {
		c.asMade = c.to.Attempts == 0 && c.to.Replays == 0
	}
	return c, nil
}

// Exhaust ends a claim whose lease is over and which was the last attempt: the worker never said what became of it,
// most likely because the message killed it. No attempt is made or counted; the row notes ReasonCrashed and waits for
// Dead, so that its letter has the same reason whoever publishes it. ErrLost: the lease lives, attempts are left, or
// somebody else has the row.
func (l *Log) Exhaust(ctx context.Context, from Row) (Row, error) {
	c, err := l.begin(actionExhaust, from)
	if err != nil {
		return Row{}, err
	}
	c.to = Version{Failed, from.Attempts, from.Replays, from.Owner}
	c.why = fmt.Sprintf("attempt %d by %s ended without a result: its lease is over", from.Attempts, from.Owner)
	if from.Remark != "" {
		c.why += "; before: " + from.Remark
	}
	c.why = cutText(c.why, MaxRemark)
	reason := ReasonCrashed
	c.remark, c.reason = &c.why, &reason
	if err := l.move(ctx, c); err != nil {
		return Row{}, err
	}
	return l.left(from, c), nil
}

// Forgive takes the last attempt back that a claim together with others had begun, and whose lease is over: a neighbour
// may have killed the process, and this message would be dead without having run. The row is due at once and marked, so
// that its last attempt is made alone; that one is not taken back. ErrLost: as for Exhaust.
func (l *Log) Forgive(ctx context.Context, from Row) (Row, error) {
	c, err := l.begin(actionForgive, from)
	if err == nil && !from.ClaimedWithOthers() {
		err = fmt.Errorf("forgive %v: %w: it was claimed alone", from.Identity, ErrTransition)
	}
	if err != nil {
		return Row{}, err
	}
	owner := strings.TrimSuffix(from.Owner, MarkGroup) + MarkAlone
	c.to = Version{Failed, from.Attempts - 1, from.Replays, owner}
	c.own = true
	c.backdate = l.delay(c.to.Attempts)
	c.why = fmt.Sprintf("attempt %d, which was claimed together with others, ended without a result: it is made again, "+
		"alone", from.Attempts)
	if err := l.move(ctx, c); err != nil {
		return Row{}, err
	}
	return l.left(from, c), nil
}

// begin finds the arrow of an action that starts from a row.
func (l *Log) begin(a action, from Row) (*change, error) {
	if err := from.Identity.Validate(); err != nil {
		return nil, fmt.Errorf("%s %v: %w", a, from.Identity, err)
	}
	step, ok := transitionOf(a, from.Status)
	if !ok {
		return nil, fmt.Errorf("%s %v: %w from %v", a, from.Identity, ErrTransition, from.Status)
	}
	if step.Guard&guardOwner != 0 && !from.claimed {
		return nil, fmt.Errorf("%s %v: %w from %v without its claim", a, from.Identity, ErrTransition, from.Status)
	}
	return &change{step: step, key: from.Identity, from: from.Version}, nil
}

// left is the row as a change left it.
func (l *Log) left(from Row,
	c *change) Row {
	r := Row{Identity: c.key, Version: c.to, BodyHash: from.BodyHash, Reason: from.Reason, Remark: from.Remark,
		Age: c.backdate}
	if (r.BodyHash == nil || c.replace) && c.entry != nil && c.entry.BodyHash != ([32]byte{}) {
		r.BodyHash = c.entry.BodyHash[:]
	}
	if c.reason != nil {
		r.Reason = *c.reason
	}
	if c.remark != nil {
		r.Remark = *c.remark
	}
	l.judge(&r)
	return r
}
