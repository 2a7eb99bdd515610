package dedup

import (
	"context"
	"fmt"
)

// Claim takes a row to processing with one more attempt, and commits that. From is the row as LookUp gave it: absent, or
// failed and due with attempts left, or processing with an expired lease and attempts left; the database checks that again.
// The owner must be unlike that of every other claim ever made (1 to MaxOwner bytes).
//
// ErrLost: somebody else was faster, or it is not time. ErrUnknown: call again with the same owner; a claim found to be
// ours is ours. Claim keeps the entry in the row where the row does not have it yet.
func (l *Log) Claim(ctx context.Context, from Row, e Entry, owner string) (Claim, error) {
	c, err := l.begin(ActionClaim, from)
	if err != nil {
		return Claim{}, err
	}
	if err := validateOwner(owner); err != nil {
		return Claim{}, fmt.Errorf("claim %v: %w", from.Key, err)
	}
	c.to = Version{Processing, 1, 0, owner}
	if from.Status != Absent {
		c.to = Version{Processing, from.Attempts + 1, from.Replays, owner}
	}
	none := "" // a reason noted by Exhaust is void when MAX_ATTEMPTS was raised since
	c.own, c.entry, c.reason = true, &e, &none
	if err := l.move(ctx, c); err != nil {
		return Claim{}, err
	}
	hash := from.BodyHash
	if hash == nil && e.BodyHash != ([32]byte{}) {
		hash = e.BodyHash[:]
	}
	return Claim{Key: from.Key, Attempts: c.to.Attempts, Replays: c.to.Replays, Owner: owner, BodyHash: hash, Remark: from.Remark}, nil
}

// Success marks a claim's effect as applied, in the transaction of the effect. The row drops body and properties.
// ErrLost: the lease was over and somebody else has the row. Whatever the error, roll the transaction back.
func (l *Log) Success(ctx context.Context, tx Execer, claim Claim) error {
	c, err := l.begin(ActionSuccess, claim.Row())
	if err != nil {
		return err
	}
	c.to = claim.Applied()
	c.dropBody = true
	if err := l.apply(ctx, tx, c); err != nil {
		return fmt.Errorf("success of %v: %w", claim.Key, err)
	}
	return nil
}

// Fail records that a claim's attempt failed, and why. The row is due after the delay of its attempts; when none is left
// it waits for Dead. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) Fail(ctx context.Context, claim Claim, cause string) (Row, error) {
	c, err := l.begin(ActionFail, claim.Row())
	if err != nil {
		return Row{}, err
	}
	c.to = Version{Failed, claim.Attempts, claim.Replays, claim.Owner}
	c.own = true
	c.why = cutText(cause, MaxRemark)
	c.remark = &c.why
	if err := l.move(ctx, c); err != nil {
		return Row{}, err
	}
	return l.left(claim.Row(), c), nil
}

// Unclaim gives a claim back that never ran to an end through no fault of its message: no attempt is counted, and the row
// is due at once. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) Unclaim(ctx context.Context, claim Claim) error {
	c, err := l.begin(ActionUnclaim, claim.Row())
	if err != nil {
		return err
	}
	c.to = Version{Failed, claim.Attempts - 1, claim.Replays, claim.Owner}
	c.own = true
	c.backdate = l.delay(c.to.Attempts)
	return l.move(ctx, c)
}

// ReasonCrashed is why a message is dead whose last attempt never came back.
const ReasonCrashed = "crashed"

// Exhaust ends a claim whose lease is over and which was the last attempt: the worker never said what became of it, most
// likely because the message killed it. No attempt is made or counted; the row notes ReasonCrashed and waits for Dead, so
// that its letter has the same reason whoever publishes it. ErrLost: the lease lives,
// attempts are left, or somebody else has the row.
func (l *Log) Exhaust(ctx context.Context, from Row) (Row, error) {
	c, err := l.begin(ActionExhaust, from)
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

// begin finds the arrow of an action that starts from a row.
func (l *Log) begin(a Action, from Row) (*change, error) {
	if err := from.Key.Validate(); err != nil {
		return nil, fmt.Errorf("%s %v: %w", a, from.Key, err)
	}
	step, ok := transitionOf(a, from.Status)
	if !ok {
		return nil, fmt.Errorf("%s %v: %w from %v", a, from.Key, ErrTransition, from.Status)
	}
	if step.Guard&GuardOwner != 0 && !from.claimed {
		return nil, fmt.Errorf("%s %v: %w from %v without its claim", a, from.Key, ErrTransition, from.Status)
	}
	return &change{step: step, key: from.Key, from: from.Version}, nil
}

// left is the row as a change left it.
func (l *Log) left(from Row, c *change) Row {
	r := Row{Key: c.key, Version: c.to, BodyHash: from.BodyHash, Reason: from.Reason, Remark: from.Remark, Age: c.backdate}
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
