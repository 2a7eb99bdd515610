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
	var errs []error
	for _, lt := range letters {
		if err := r.settle(ctx, lt); err != nil {
			errs = append(errs, err)
		}
		if lt.why != "" {
			r.tally.leave(lt, lt.why, lt.err)
			continue
		}
		r.tally.Stale++
	}
	return errors.Join(errs...)
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
func (r *run) finish(ctx context.Context, letters []*letter, counter *int) error {
	var errs []error
	for _, lt := range letters {
		if lt.why == "" {
			*counter++
			r.tally.done(lt)
			if err := r.settle(ctx, lt); err != nil {
				errs = append(errs, err)
			}
		}
		if lt.why != "" {
			r.tally.leave(lt, lt.why, lt.err)
		}
		for _, f := range lt.followers {
			if f.why, f.err = lt.why, lt.err; f.why == "" {
				f.why, f.err = r.ack(f)
			}
			if f.why != "" {
				r.tally.leave(f, f.why, f.err)
				continue
			}
			r.tally.Duplicates++
		}
	}
	return errors.Join(append(errs, r.l.hook(pointAcked))...)
}

// settle ends the row of a former identity, then acks. Its error is one after which the run must end.
func (r *run) settle(ctx context.Context, lt *letter) error {
	if lt.formerRow.Status != dedup.Absent {
		err := insist(ctx, func() error {
			return r.l.o.Records.Discard(ctx, lt.formerRow, dedup.Entry{Identity: lt.formerRow.Identity}, r.o.By,
				"replayed as "+lt.id.Identity.String())
		})
		if err != nil && !errors.Is(err, dedup.ErrStale) {
			lt.why, lt.err = WhyOldRow, err
			return nil
		}
	}
	lt.why, lt.err = r.ack(lt)
	if lt.why != "" {
		return lt.err
	}
	return nil
}

func (r *run) ack(lt *letter) (Why, error) {
	if err := lt.ack(); err != nil {
		return WhyUnacked, brokerError(fmt.Errorf("ack the letter of %v: %w", lt.id.Identity, err))
	}
	return "", nil
}
