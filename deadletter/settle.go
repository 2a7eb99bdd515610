package deadletter

import (
	"context"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/dedup"
)

// drop acks letters whose identity has ended.
func (r *run) drop(ctx context.Context, letters []*letter) error {
	if r.o.DryRun {
		r.tally.Stale += len(letters)
		return nil
	}
	err := r.finish(ctx, letters)
	for _, lt := range letters {
		if lt.why == "" {
			r.tally.Stale++
		}
	}
	return err
}

// park marks the rows of the letters that were replayed often enough.
func (r *run) park(ctx context.Context, rows []dedup.Row) error {
	r.tally.Parked += len(rows)
	if r.o.DryRun {
		return nil
	}
	for _, row := range rows {
		why := fmt.Sprintf("after %d replays of at most %d", row.Replays, r.l.o.MaxReplays)
		if _, err := r.l.o.Records.Park(ctx, row, r.o.By, why); err != nil {
			return err
		}
	}
	return nil
}

// finish acks the letters for which everything is durable, with their followers, and reports the others.
func (r *run) finish(ctx context.Context, letters []*letter) error {
	var durable []*letter
	for _, lt := range r.endFormer(ctx, letters) {
		durable = append(append(durable, lt), lt.followers...)
	}
	err := r.ackAll(durable)
	for _, lt := range letters {
		if lt.why != "" {
			r.tally.leave(lt, lt.why, lt.err)
		}
		for _, f := range lt.followers {
			if f.why == "" {
				f.why, f.err = lt.why, lt.err
			}
			if f.why != "" {
				r.tally.leave(f, f.why, f.err)
				continue
			}
			r.tally.Duplicates++
		}
	}
	return err
}

// endFormer ends the rows of former identities, and returns the letters that may be acked: those that do not stay
// already, and whose former row could be ended.
func (r *run) endFormer(ctx context.Context, letters []*letter) (rest []*letter) {
	for _, lt := range letters {
		if lt.why != "" {
			continue
		}
		if lt.formerRow.Status != dedup.Absent {
			insist(ctx, []*letter{lt}, func([]*letter) []error {
				return []error{r.l.o.Records.Discard(ctx, lt.formerRow, dedup.Entry{Identity: lt.formerRow.Identity}, r.o.By,
					"replayed as "+lt.id.Identity.String())}
			})
			if lt.err != nil && !errors.Is(lt.err, dedup.ErrStale) {
				lt.why = WhyOldRow
				continue
			}
			lt.why, lt.err = "", nil
		}
		rest = append(rest, lt)
	}
	return rest
}

// ackAll acks letters together, as far as they came on one channel. After an error nobody knows which acks of that
// channel arrived: all its letters stay as unacked, and the run must end.
func (r *run) ackAll(letters []*letter) error {
	by := map[*channel][]*letter{}
	for _, lt := range letters {
		if lt.from != nil { // one from a file has nothing to forget
			by[lt.from] = append(by[lt.from], lt)
		}
	}
	var errs []error
	for from, some := range by {
		if err := from.ack(some); err != nil {
			err = brokerError(fmt.Errorf("ack %d letters, the first of %v: %w", len(some), some[0].id.Identity, err))
			for _, lt := range some {
				lt.why, lt.err = WhyUnacked, err
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
