package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	// writers is how many rows are changed at once: MySQL commits what waits together in one write.
	writers = 8
	// tries is how often a change of a row is tried whose answer was lost, or that met another transaction.
	tries = 4
)

// replay is the way of some letters, each of another identity: reopen (committed), publish (confirmed and routed), ack.
func (r *run) replay(ctx context.Context, letters []*letter) error {
	if r.o.DryRun {
		r.pretend(letters, &r.result.Replayed)
		return nil
	}
	fault := r.change(ctx, letters, r.reopen)
	if err := r.l.at(PointReopened); err != nil {
		return err
	}
	fault = errors.Join(fault, r.publish(ctx, letters))
	if err := r.l.at(PointPublished); err != nil {
		return err
	}
	return errors.Join(fault, r.finish(ctx, letters, &r.result.Replayed))
}

// end is the way of letters that are discarded: the row says so (committed), ack.
func (r *run) end(ctx context.Context, letters []*letter) error {
	if r.o.DryRun {
		r.pretend(letters, &r.result.Discarded)
		return nil
	}
	fault := r.change(ctx, letters, func(ctx context.Context, lt *letter, _ string) error {
		return r.l.o.Records.Discard(ctx, lt.row, lt.entry(), r.o.By, r.because+" (chosen: "+r.f.String()+")")
	})
	if err := r.l.at(PointDiscarded); err != nil {
		return err
	}
	return errors.Join(fault, r.finish(ctx, letters, &r.result.Discarded))
}

// drop acks letters whose identity has ended.
func (r *run) drop(ctx context.Context, letters []*letter) error {
	if r.o.DryRun {
		r.result.Stale += len(letters)
		return nil
	}
	var errs []error
	for _, lt := range letters {
		if err := r.settle(ctx, lt); err != nil {
			errs = append(errs, err)
		}
		if lt.why != "" {
			r.result.leave(lt, lt.why, lt.err)
			continue
		}
		r.result.Stale++
	}
	return errors.Join(errs...)
}

// park marks the rows of the letters that were replayed often enough.
func (r *run) park(ctx context.Context) error {
	rows := r.parked
	r.parked = nil
	r.result.Parked += len(rows)
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

// reopen makes a letter's row start anew, under a name that only this letter of this run has.
func (r *run) reopen(ctx context.Context, lt *letter, token string) error {
	row, err := r.l.o.Records.Reopen(ctx, lt.row, lt.entry(), dedup.ReplayNote{
		By: r.o.By, Filter: r.f.String(), Token: token, Discarded: r.o.Discarded,
	})
	if err == nil {
		lt.row.Version = row.Version
	}
	return err
}

// change changes the row of each letter, several at a time, and notes why a letter stays whose row could not be. The error is
// that of a database that does not answer, after which the run must end.
func (r *run) change(ctx context.Context, letters []*letter, do func(context.Context, *letter, string) error) error {
	var wg sync.WaitGroup
	next := make(chan func())
	for range min(writers, len(letters)) {
		wg.Go(func() {
			for work := range next {
				work()
			}
		})
	}
	for _, lt := range letters {
		r.count++
		token := fmt.Sprintf("%s%d", r.token, r.count)
		next <- func() {
			lt.err = insist(ctx, func() error { return do(ctx, lt, token) })
			lt.why = whyNot(lt.err)
		}
	}
	close(next)
	wg.Wait()
	var fault error
	for _, lt := range letters {
		if isFault(lt.err) {
			fault = lt.err
		}
	}
	return fault
}

// isFault reports whether the database is to blame, so that the next letters would fare no better.
func isFault(err error) bool {
	if errors.Is(err, dedup.ErrUnknown) {
		return true
	}
	if errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrStale) {
		return false
	}
	switch dedup.Classify(err) {
	case dedup.FaultContention, dedup.FaultUnavailable:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// insist repeats a change whose answer was lost, which the log recognises as its own, and one that lost a deadlock. Once
// an answer was lost, the outcome is unknown until a later one tells.
func insist(ctx context.Context, do func() error) error {
	var unknown error
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		err := do()
		if errors.Is(err, dedup.ErrUnknown) {
			unknown = dedup.ErrUnknown
		}
		again := unknown != nil && isFault(err) || dedup.Classify(err) == dedup.FaultContention
		if !again {
			return err
		}
		if try == tries {
			return errors.Join(unknown, err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(unknown, err, context.Cause(ctx))
		}
		pause *= 4
	}
}

// whyNot is why a letter stays whose row could not be changed; "" when it was.
func whyNot(err error) Why {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, dedup.ErrUnknown):
		return WhyUnknown
	case errors.Is(err, dedup.ErrLost), errors.Is(err, dedup.ErrStale):
		return WhyMoved
	}
	return WhyFailed
}

// publish sends the messages of all letters whose rows this run has just reopened, and of no other.
func (r *run) publish(ctx context.Context, letters []*letter) (fault error) {
	var batch []rabbit.Publishing
	var sent []*letter
	for _, lt := range letters {
		if lt.why == "" {
			sent = append(sent, lt)
			batch = append(batch, rabbit.Publishing{Key: r.l.o.Queue, Message: wire.Copy(lt.Delivery, r.l.o.Queue, wire.CopyOptions{
				Identity: lt.id, Replays: lt.row.Replays,
			})})
		}
	}
	if len(batch) == 0 {
		return nil
	}
	for i, err := range r.publisher.Publish(ctx, batch) {
		if err == nil {
			continue
		}
		sent[i].why, sent[i].err = WhyUnpublished, err
		if !errors.Is(err, rabbit.ErrUnsendable) { // the others would meet it too: do not reopen more rows
			fault = brokerError(fmt.Errorf("publish to queue %q: %w", r.l.o.Queue, err))
		}
	}
	return fault
}

// finish acks the letters for which everything is durable, with their followers, and reports the others.
func (r *run) finish(ctx context.Context, letters []*letter, counter *int) error {
	var errs []error
	for _, lt := range letters {
		if lt.why == "" {
			*counter++
			r.result.done(lt)
			if err := r.settle(ctx, lt); err != nil {
				errs = append(errs, err)
			}
		}
		if lt.why != "" {
			r.result.leave(lt, lt.why, lt.err)
		}
		for _, f := range lt.followers {
			if f.why, f.err = lt.why, lt.err; f.why == "" {
				f.why, f.err = r.ackLetter(f)
			}
			if f.why != "" {
				r.result.leave(f, f.why, f.err)
				continue
			}
			r.result.Duplicates++
		}
	}
	return errors.Join(append(errs, r.l.at(PointAcked))...)
}

// settle ends the row of a former identity, then acks. Its error is one after which the run must end.
func (r *run) settle(ctx context.Context, lt *letter) error {
	if lt.old.Status != dedup.Absent {
		err := insist(ctx, func() error {
			return r.l.o.Records.Discard(ctx, lt.old, dedup.Entry{Key: lt.old.Key}, r.o.By, "replayed as "+lt.id.Key.String())
		})
		if err != nil && !errors.Is(err, dedup.ErrStale) {
			lt.why, lt.err = WhyOldRow, err
			return nil
		}
	}
	lt.why, lt.err = r.ackLetter(lt)
	if lt.why != "" {
		return lt.err
	}
	return nil
}

func (r *run) ackLetter(lt *letter) (Why, error) {
	if err := lt.ack(); err != nil {
		return WhyUnacked, brokerError(fmt.Errorf("ack the letter of %v: %w", lt.id.Key, err))
	}
	return "", nil
}

// pretend counts what a dry run would have done.
func (r *run) pretend(letters []*letter, counter *int) {
	for _, lt := range letters {
		*counter++
		r.result.done(lt)
		r.result.Duplicates += len(lt.followers)
	}
}
