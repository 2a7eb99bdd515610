package dedup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// Reopen makes an ended identity start anew: attempts 0, one replay more, due at once. From is the row as it was read:
// absent, failed, dead, or processing with an expired lease; discarded only when the note says so. The letter may be
// published only after Reopen returned nil for this very note.
//
// ErrStale: the row is in success, or discarded and nobody asked for those: the letter is stale. ErrLost: the lease
// lives, or somebody moved the row; the letter stays. ErrUnknown: call again with the same note.
func (l *Log) Reopen(ctx context.Context, from Row, e Entry, note ReplayNote) (Row, error) {
	c, err := l.begin(ActionReopen, from)
	if errors.Is(err, ErrTransition) && from.Status == Success {
		err = fmt.Errorf("reopen %v: %w: %v", from.Key, ErrStale, from.Status)
	}
	if err == nil && c.step.Guard&GuardAsked != 0 && !note.Discarded {
		err = fmt.Errorf("reopen %v: %w: %v", from.Key, ErrStale, from.Status)
	}
	if err == nil {
		err = validateOwner(note.Token)
	}
	if err != nil {
		return Row{}, err
	}
	replays := 1
	if from.Status != Absent {
		replays = from.Replays + 1
	}
	none := ""
	c.to = Version{Failed, 0, replays, note.Token}
	c.own, c.entry, c.reason = true, &e, &none
	c.by, c.why = note.By, strings.TrimSpace("replayed "+note.Filter)
	if err := l.move(ctx, c); err != nil {
		return Row{}, err
	}
	return l.left(from, c), nil
}

// Discard ends an identity by a person's will: an absent, failed or dead one, or a processing one with an expired lease.
// ErrStale: it has ended already. ErrLost: the lease lives, or somebody moved the row. ErrUnknown: look again.
func (l *Log) Discard(ctx context.Context, from Row, e Entry, by, why string) error {
	c, err := l.begin(ActionDiscard, from)
	if errors.Is(err, ErrTransition) && (from.Status == Success || from.Status == Discarded) {
		err = fmt.Errorf("discard %v: %w: %v", from.Key, ErrStale, from.Status)
	}
	if err != nil {
		return err
	}
	c.to = Version{Status: Discarded}
	if from.Status != Absent {
		c.to = Version{Discarded, from.Attempts, from.Replays, from.Owner}
	}
	remark := cutText(fmt.Sprintf("discarded by %s: %s", by, why), MaxRemark)
	c.entry, c.remark = &e, &remark
	c.by, c.why = by, why
	return l.move(ctx, c)
}
