package dedup

import (
	"context"
	"errors"
	"fmt"
)

// maxAdopted bounds the replays of a letter that is adopted: its header may be forged, and the column counts on.
const maxAdopted = 1 << 30

// Adopt marks an absent identity dead whose letter lies in the dead-letter queue without a row, on behalf of a person.
// Replays are those that the letter says its row had, so that it still is its row's letter when somebody moves it by
// hand: the daemon acks an older one. For the rest it is like [Log.Dead].
func (l *Log) Adopt(ctx context.Context, e Entry, replays int, reason Reason, cause, by string) error {
	_, err := first(moveAll(ctx, l, []Death{{absent(e.Identity), e, reason, cause}}, func(d Death) (*change, error) {
		c, err := l.dying(d)
		if err == nil {
			c.to.Replays, c.by = max(0, min(replays, maxAdopted)), by
		}
		return c, err
	}))
	return err
}

// AdoptSuccess writes the success row of an absent identity whose effect is committed, on behalf of a person: somebody
// deleted the row. The caller must hold, in tx, locks on what proves the effect. It writes a line of the story.
// ErrExists: there is a row. Whatever the error, roll tx back.
func (l *Log) AdoptSuccess(ctx context.Context, tx Execer, k Identity, by, why string) error {
	c, err := l.begin(actionInsert, absent(k))
	if err != nil {
		return err
	}
	c.to.Attempts, c.entry, c.by = 1, &Entry{Identity: k}, by
	c.say(why)
	err = l.apply(ctx, tx, []*change{c})
	if errors.Is(err, ErrLost) {
		err = ErrExists
	}
	if err != nil {
		return fmt.Errorf("adopt %v as applied: %w", k, err)
	}
	return nil
}
