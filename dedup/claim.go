package dedup

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A method named All moves many rows in one transaction, and its namesake one by it. Results are as long as what was
// given: one that is lost does not hinder the others. No identity may be named twice. ErrLost: somebody else has the
// row. ErrUnknown: call again with the same arguments.

// Claiming is what ClaimAll takes.
type Claiming struct {
	From  Row
	Entry *Entry // nil: the row knows its message
}

// ClaimAll takes rows to processing with one more attempt, and commits that. From is the row as LookUp gave it: absent,
// or failed and due with attempts left, or processing with an expired lease and attempts left; the database checks that
// again. The owner must be unlike that of every other claim ever made of these identities (1 to MaxOwner bytes). The
// entry is kept in the row where the row does not have it yet.
//
// ErrLost: somebody else was faster, or it is not time, or the row is failed and marked with MarkAlone and the owner is
// not. ErrUnknown: call again with the same owner; a claim found to be ours is ours.
func (l *Log) ClaimAll(ctx context.Context, all []Claiming, owner string) (claims []Claim, errs []error) {
	rows, errs := moveAll(ctx, l, all, func(a Claiming) *change {
		var unknown error
		if a.Entry == nil && len(a.From.BodyHash) == 0 {
			unknown = fmt.Errorf("%w: it does not know its message", ErrTransition)
		}
		c := l.begin(actionClaim, a.From, unknown, validateOwner(owner))
		c.to.Attempts++
		c.to.Owner = owner
		c.entry, c.silent = a.Entry, a.From.Status == Absent || a.From.PutOff()
		if a.From.Status == Absent && a.Entry != nil && a.Entry.Came != "" {
			c.remark = set(a.Entry.Came)
		}
		c.reason = set(Reason("")) // one noted by Exhaust is void when MAX_ATTEMPTS was raised since
		return c
	})
	claims = make([]Claim, len(all))
	for i, r := range rows {
		if errs[i] == nil {
			claims[i] = Claim{r.Identity, r.Attempts, r.Replays, r.Owner, r.BodyHash, r.Remark, all[i].From.At, all[i].From.Age}
		}
	}
	return claims, errs
}

// Claim is ClaimAll of one.
func (l *Log) Claim(ctx context.Context, from Row, e Entry, owner string) (Claim, error) {
	return first(l.ClaimAll(ctx, []Claiming{{from, &e}}, owner))
}

// SuccessAll marks the effects of claims as applied, in the transaction of the effect, which holds their rows. They
// drop body and properties. ErrLost: a lease was over and somebody else has its row, and nothing is known of any of
// them. Whatever the error, roll the transaction back.
func (l *Log) SuccessAll(ctx context.Context, tx Execer, claims []Claim) error {
	return succeedAll(ctx, l, tx, claims, l.succeeding)
}

// ApplyAll is InsertSuccess for messages that have a row: one that is failed and due, with attempts left and without
// MarkAlone, as LookUp gave it, and that nobody claims. That is an attempt. The database checks it again. ErrLost:
// somebody has moved one of the rows. Whatever the error, roll the transaction back.
func (l *Log) ApplyAll(ctx context.Context, tx Execer, from []Row) error {
	if l.memory != nil {
		l.memory.begin()
	}
	return succeedAll(ctx, l, tx, from, func(from Row) *change {
		var none error
		if from.Status == Absent {
			none = fmt.Errorf("%w: it has no row", ErrTransition)
		}
		c := l.begin(actionInsert, from, none)
		c.to.Attempts++
		c.silent = true
		return c
	})
}

func succeedAll[T any](ctx context.Context, l *Log, tx Execer, all []T, begin func(T) *change) error {
	changes := inOrder(mapped(all, begin))
	if err := l.applyAll(ctx, tx, changes); err != nil {
		return fmt.Errorf("success of %d rows from %v: %w", len(all), changes[0].key, err)
	}
	return nil
}

// MarkAll is SuccessAll for effects are not in this database, in a transaction of its own.
func (l *Log) MarkAll(ctx context.Context, claims []Claim) (errs []error) {
	_, errs = moveAll(ctx, l, claims, l.succeeding)
	return errs
}

func (l *Log) succeeding(claim Claim) *change {
	c := l.begin(actionSuccess, claim.Row())
	c.silent = true
	return c
}

// Hold locks the rows of claims until tx ends, and compares each with its claim. ErrLost: somebody else has one of
// them.
func (l *Log) Hold(ctx context.Context, tx Execer, claims []Claim) error {
	if l.memory != nil {
		return l.memory.hold(claims)
	}
	for some := range slices.Chunk(claims, lookUpAnyRows) {
		keys := mapped(some, func(c Claim) Identity { return c.Identity })
		s := l.ofKeys(keys, "group_name, msg_tag, msg_key, consumer_status, consumer_times, replays, COALESCE(owner, '')")
		s.add(" ORDER BY group_name, msg_tag, msg_key FOR UPDATE")
		rows, err := list(ctx, tx, s, func(r *Row) []any {
			return []any{&r.Group, &r.Tag, &r.Key, &r.Status, &r.Attempts, &r.Replays, &r.Owner}
		})
		if err != nil {
			return fmt.Errorf("hold %d claims from %v: %w", len(some), some[0].Identity, err)
		}
		held := make(map[Identity]Version, len(some))
		for _, r := range rows {
			held[r.Identity] = r.Version
		}
		for _, c := range some {
			if held[c.Identity] != c.version() {
				return fmt.Errorf("hold %v: %w", c.Identity, ErrLost)
			}
		}
	}
	return nil
}

// Failure is what FailAll and PutOffAll take.
type Failure struct {
	Claim Claim
	Cause string
	// After, if more than 0, is when the row is due, in place of the delay of its attempts. At most 720h; PutOffAll heeds
	// it where there is a cause.
	After time.Duration
}

// FailAll records that the attempts of claims failed, and why. Each row is due after the delay of its attempts; when
// none is left it waits for Dead. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) FailAll(ctx context.Context, all []Failure) (rows []Row, errs []error) {
	return moveAll(ctx, l, all, func(f Failure) *change {
		c := l.begin(actionFail, f.Claim.Row())
		c.say(f.Cause)
		c.after(f.After)
		return c
	})
}

// Blamed is what BlameAll takes.
type Blamed struct {
	From  Row // failed, due, and it knows its message; zero: the identity has no row
	Entry Entry
	Cause string
	After time.Duration // as in Failure
}

// BlameAll records an attempt that no claim counted, of messages whose handler said in a transaction with others, and
// in time, that they failed. Their rows are failed, with one attempt more, and due after its delay. The owner, 1 to
// MaxOwner bytes, is unlike that of every other call. ErrLost: there is a row by now, or it was moved, and nothing is
// counted.
func (l *Log) BlameAll(ctx context.Context, all []Blamed, owner string) (rows []Row, errs []error) {
	return moveAll(ctx, l, all, func(b Blamed) *change {
		if b.From.Identity == (Identity{}) {
			b.From = absent(b.Entry.Identity)
		}
		c := l.begin(actionBlame, b.From, validateOwner(owner))
		c.to.Attempts++
		c.to.Owner = owner
		if b.From.Status == Absent {
			c.entry = &b.Entry
		}
		c.say(b.Cause)
		c.after(b.After)
		return c
	})
}

// UnclaimAll gives claims back that never ran to an end through no fault of their messages: no attempt is counted, and
// each row is due at once. ErrLost: somebody else has the row. ErrUnknown: call again.
func (l *Log) UnclaimAll(ctx context.Context, claims []Claim) (errs []error) {
	_, errs = moveAll(ctx, l, claims, func(c Claim) *change { return l.unclaiming(Failure{Claim: c}) })
	return errs
}

// PutOffAll is UnclaimAll for attempts that somebody else put off, who said why, and perhaps until when; one without a
// cause never ran. The cause is the row's remark then, and the row stands in the log since before the first of such
// attempts.
func (l *Log) PutOffAll(ctx context.Context, all []Failure) (errs []error) {
	_, errs = moveAll(ctx, l, all, l.unclaiming)
	return errs
}

// unclaiming is for a claim that never ran, or with a cause for one that was put off. How long a message is put off is
// to be seen, so its row gets back the time that it had, and however often that happens its story has one line of it.
func (l *Log) unclaiming(f Failure) *change {
	c := l.begin(actionUnclaim, f.Claim.Row())
	c.to.Attempts--
	c.backdate = l.delay(c.to.Attempts)
	if f.Cause == "" {
		return c
	}
	c.say(putOff + f.Cause)
	c.after(f.After)
	c.silent = strings.HasPrefix(f.Claim.Remark, putOff)
	if at := f.Claim.at.UnixMicro(); !f.Claim.at.IsZero() {
		c.at = &at
	} else {
		c.asMade = c.to.Attempts == 0 && c.to.Replays == 0
	}
	return c
}

// Exhaust ends a claim whose lease is over and which was the last attempt: the worker never said what became of it,
// most likely because the message killed it. No attempt is made or counted; the row notes ReasonCrashed and waits for
// Dead, so that its letter has the same reason whoever publishes it. ErrLost: the lease lives, attempts are left, or
// somebody else has the row.
func (l *Log) Exhaust(ctx context.Context, from Row) (Row, error) {
	return first(moveAll(ctx, l, []Row{from}, func(from Row) *change {
		c := l.begin(actionExhaust, from)
		why := fmt.Sprintf("attempt %d by %s ended without a result: its lease is over", from.Attempts, from.Owner)
		if from.Remark != "" {
			why += "; before: " + from.Remark
		}
		c.say(why)
		c.reason = set(ReasonCrashed)
		return c
	}))
}

// Forgive takes an attempt back that a claim together with others had begun, and whose lease is over: the last one,
// because a neighbour may have killed the process, and this message would be dead without having run; or one that took
// its row over with others, which pays for no second death. The row is due at once and marked, so that its next attempt
// is made alone; that one is not taken back. ErrLost: the lease lives, or somebody else has the row.
func (l *Log) Forgive(ctx context.Context, from Row) (Row, error) {
	return first(moveAll(ctx, l, []Row{from}, func(from Row) *change {
		var alone error
		if from.Status == Processing && !from.ClaimedWithOthers() {
			alone = fmt.Errorf("%w: it was claimed alone", ErrTransition)
		}
		c := l.begin(actionForgive, from, alone)
		if from.TakenWithOthers() {
			c.step.Guard &^= guardSpent
		}
		c.to.Attempts--
		c.to.Owner = strings.TrimSuffix(strings.TrimSuffix(from.Owner, MarkAlone), MarkGroup) + MarkAlone
		c.backdate = l.delay(c.to.Attempts)
		c.why = fmt.Sprintf("attempt %d, which was claimed together with others, ended without a result: it is made again, "+
			"alone", from.Attempts)
		return c
	}))
}
