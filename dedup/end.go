package dedup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// Dead marks an identity dead, after its letter is confirmed: an absent or failed one, or a claimed one by the row of its
// own claim (Claim.Row). The entry is kept where the row does not have it yet, so that a person can read the message.
// ErrLost: somebody moved the row; the letter stands, and is stale or theirs. ErrUnknown: call again.
func (l *Log) Dead(ctx context.Context, from Row, e Entry, reason, cause string) error {
	c, err := l.begin(ActionDead, from)
	if err != nil {
		return err
	}
	if err := validateReason(reason); err != nil {
		return fmt.Errorf("dead %v: %w", from.Key, err)
	}
	c.to = Version{Status: Dead}
	if from.Status != Absent {
		c.to = Version{Dead, from.Attempts, from.Replays, from.Owner}
	}
	c.own = from.claimed
	c.entry, c.reason = &e, &reason
	c.why = cutText(cause, MaxRemark)
	c.remark = &c.why
	return l.move(ctx, c)
}

// DeadAll marks many absent identities dead in one transaction, after their letters are confirmed. ErrExists: one of them
// has a row, and nothing was written; go through them one by one. ErrUnknown: look them up.
func (l *Log) DeadAll(ctx context.Context, letters []Letter) error {
	if len(letters) == 0 {
		return nil
	}
	sorted := slices.Clone(letters)
	slices.SortFunc(sorted, func(a, b Letter) int { return a.Key.Compare(b.Key) })
	for i, letter := range sorted {
		if err := cmp.Or(letter.Key.Validate(), validateReason(letter.Reason)); err != nil {
			return fmt.Errorf("dead %v: %w", letter.Key, err)
		}
		if i > 0 && letter.Key == sorted[i-1].Key {
			return fmt.Errorf("dead %v: it is named twice", letter.Key)
		}
	}
	step, _ := transitionOf(ActionDead, Absent)
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
		return fmt.Errorf("dead, %d identities from %v: %w", len(sorted), sorted[0].Key, err)
	}
	return nil
}

func (l *Log) insertLetters(ctx context.Context, tx Execer, step Transition, letters []Letter) error {
	args := make([]any, 0, 9*len(letters))
	events := make([]any, 0, 6*len(letters))
	for i := range letters {
		e := &letters[i].Entry
		cause := cutText(letters[i].Cause, MaxRemark)
		key := keyArgs(e.Key)
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
