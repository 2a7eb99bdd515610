package dedup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Dead marks an identity dead, after its letter is confirmed: an absent or failed one, or a claimed one by the row of
// its own claim (Claim.Row). The entry is kept where the row does not have it yet, so that a person can read the
// message. ErrLost: somebody moved the row; the letter stands, and is stale or theirs. ErrUnknown: call again.
func (l *Log) Dead(ctx context.Context, from Row, e Entry, reason Reason, cause string) error {
	return l.DeadRows(ctx, []Death{{from, e, reason, cause}})[0]
}

// Death is what DeadRows takes.
type Death struct {
	From  Row
	Entry Entry
	// Reason has 1 to MaxReason bytes.
	Reason Reason
	Cause  string
}

// DeadRows is Dead for many identities, in one transaction. Errs is as long as all: one that is lost does not hinder
// the others. No identity may be named twice.
func (l *Log) DeadRows(ctx context.Context, all []Death) (errs []error) {
	return l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.dying(&all[i]) }, func(int, *change) {})
}

func (l *Log) dying(d *Death) (*change, error) {
	from := d.From
	c, err := l.begin(actionDead, from)
	if err != nil {
		return nil, err
	}
	if err := validateReason(d.Reason); err != nil {
		return nil, fmt.Errorf("dead %v: %w", from.Identity, err)
	}
	c.to = Version{Status: Dead}
	if from.Status != Absent {
		c.to = Version{Dead, from.Attempts, from.Replays, from.Owner}
	}
	c.own, c.entry, c.reason = from.claimed, &d.Entry, &d.Reason
	if from.Status == Failed && len(from.BodyHash) > 0 {
		c.entry = nil // it has its message since it was claimed, blamed, condemned or reopened
	}
	c.why = cutText(d.Cause, MaxRemark)
	c.remark = &c.why
	return c, nil
}

// Condemnation is what CondemnAll takes.
type Condemnation struct {
	From  Row
	Entry Entry
	// Reason has 1 to MaxReason bytes.
	Reason Reason
	Cause  string
	Owner  string
}

// CondemnAll writes down that identities are to be dead, while their letters cannot be published: absent ones, or
// claimed ones by the rows of their own claims (Claim.Row). The row is failed, keeps reason, cause and entry, and gets
// no further attempt, whoever comes; it waits for Dead. The owner, 1 to MaxOwner bytes and unlike every other, tells
// whose work the row of an absent identity is; a claimed one keeps its claim's.
//
// All is one transaction. Rows and errs are as long as all: one that is lost does not hinder the others. ErrLost:
// somebody has the row. ErrUnknown: call again with the same owner. No identity may be named twice.
func (l *Log) CondemnAll(ctx context.Context, all []Condemnation) (rows []Row, errs []error) {
	rows = make([]Row, len(all))
	errs = l.changeAll(ctx, len(all), func(i int) (*change, error) { return l.condemnation(&all[i]) },
		func(i int, c *change) { rows[i] = l.left(all[i].From, c) })
	return rows, errs
}

func (l *Log) condemnation(a *Condemnation) (*change, error) {
	c, err := l.begin(actionCondemn, a.From)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(validateReason(a.Reason), validateOwner(a.Owner)); err != nil {
		return nil, fmt.Errorf("condemn %v: %w", a.From.Identity, err)
	}
	c.to = Version{Failed, 0, 0, a.Owner}
	if a.From.Status != Absent {
		c.to = Version{Failed, a.From.Attempts, a.From.Replays, a.From.Owner}
	}
	c.own, c.entry, c.reason = true, &a.Entry, &a.Reason
	c.why = cutText(a.Cause, MaxRemark)
	c.remark = &c.why
	return c, nil
}

// DeadAll marks many absent identities dead in one transaction, after their letters are confirmed. ErrExists: one of
// them has a row, and nothing was written; go through them one by one. ErrUnknown: look them up.
func (l *Log) DeadAll(ctx context.Context, letters []Letter) error {
	if len(letters) == 0 {
		return nil
	}
	sorted := slices.Clone(letters)
	slices.SortFunc(sorted, func(a, b Letter) int { return a.Identity.Compare(b.Identity) })
	for i, letter := range sorted {
		if err := cmp.Or(letter.Identity.Validate(), validateReason(letter.Reason)); err != nil {
			return fmt.Errorf("dead %v: %w", letter.Identity, err)
		}
		if i > 0 && letter.Identity == sorted[i-1].Identity {
			return fmt.Errorf("dead %v: it is named twice", letter.Identity)
		}
	}
	step, _ := transitionOf(actionDead, Absent)
	err := l.inTx(ctx, func(tx Execer) error {
		for rest := sorted; len(rest) > 0; {
			n := chunkOf(len(rest), func(i int) int { return rest[i].size() })
			if err := l.insertLetters(ctx, tx, step, rest[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("dead, %d identities from %v: %w", len(sorted), sorted[0].Identity, err)
	}
	return nil
}

func (l *Log) insertLetters(ctx context.Context, tx Execer, step transition, letters []Letter) error {
	args := make([]any, 0, 9*len(letters))
	events := make([]any, 0, 6*len(letters))
	for i := range letters {
		e := &letters[i].Entry
		cause := cutText(letters[i].Cause, MaxRemark)
		key := keyArgs(e.Identity)
		args = append(append(args, key...), messageID(e), body(e), properties(e), bodyHash(e), letters[i].Reason, cause)
		events = append(append(events, key...), int(step.To), cause, "")
	}
	if err := l.insertRows(ctx, tx, l.insertDead.of(len(letters)), args); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, l.insertEvents.of(len(letters)), events...); err != nil {
		return fmt.Errorf("write %d events: %w", len(letters), err)
	}
	return nil
}
