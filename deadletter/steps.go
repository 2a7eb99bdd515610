package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	// writers is how many transactions change rows at once: MySQL commits what waits together in one write.
	writers = 4
	// tries is how often a change of a row is tried whose answer was lost, or that met another transaction.
	tries = 4
)

// replay is the way of some letters, each of another identity: reopen (committed), publish (confirmed and routed), ack.
//
// One whose message is confirmed is followed from then on, whatever becomes of the ack.
func (r *run) replay(ctx context.Context, letters []*letter) error {
	if r.o.DryRun {
		r.pretend(letters, &r.result.Replayed)
		return nil
	}
	fault := r.change(ctx, letters, r.reopenAll)
	if err := r.l.at(PointReopened); err != nil {
		return err
	}
	fault = errors.Join(fault, r.publish(ctx, letters))
	r.watch.add(letters)
	for _, lt := range letters {
		if r.sent != nil && lt.why == "" {
			r.sent[lt.id.Key], r.owners[lt.own.Key] = lt.row.Replays, true
			r.result.mended(lt)
		}
	}
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
	fault := r.change(ctx, letters, r.discardAll)
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

// reopenAll makes the letters' rows start anew, under a name that no other call has.
func (r *run) reopenAll(ctx context.Context, letters []*letter, token string) []error {
	all := make([]dedup.Reopening, len(letters))
	for i, lt := range letters {
		all[i] = dedup.Reopening{From: lt.row, Entry: lt.entry(), Note: dedup.ReplayNote{
			By: r.o.By, Filter: r.chosen(), Token: token, Discarded: r.o.Discarded, Mended: lt.former,
		}}
	}
	rows, errs := r.l.o.Records.ReopenAll(ctx, all)
	for i, lt := range letters {
		if errs[i] == nil {
			lt.row.Version = rows[i].Version
		}
	}
	return errs
}

// chosen is what was asked for, for the story of a row.
func (r *run) chosen() string {
	if r.from == "" {
		return r.f.String()
	}
	return fmt.Sprintf("%s from %q", r.f.String(), r.from)
}

func (r *run) discardAll(ctx context.Context, letters []*letter, _ string) []error {
	all := make([]dedup.Discarding, len(letters))
	for i, lt := range letters {
		all[i] = dedup.Discarding{From: lt.row, Entry: lt.entry(), By: r.o.By, Why: r.because + " (chosen: " + r.chosen() + ")"}
	}
	return r.l.o.Records.DiscardAll(ctx, all)
}

// change changes the rows of letters, some in one transaction and several transactions at a time, and notes why a letter
// stays whose row could not be. The error is that of a database that does not answer, after which the run must end.
func (r *run) change(ctx context.Context, letters []*letter, do func(context.Context, []*letter, string) []error) error {
	if len(letters) == 0 {
		return nil
	}
	var wg sync.WaitGroup
	for group := range slices.Chunk(letters, (len(letters)+writers-1)/writers) {
		r.count++
		token := fmt.Sprintf("%s%d", r.token, r.count)
		wg.Go(func() {
			errs := insistAll(ctx, len(group), func(open []int) []error {
				some := make([]*letter, len(open))
				for i, at := range open {
					some[i] = group[at]
				}
				return do(ctx, some, token)
			})
			for i, lt := range group {
				lt.err, lt.why = errs[i], whyNot(errs[i])
			}
		})
	}
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

// insist is insistAll for one change.
func insist(ctx context.Context, do func() error) error {
	return insistAll(ctx, 1, func([]int) []error { return []error{do()} })[0]
}

// insistAll repeats those of n changes whose answer was lost, which the log recognises as its own, and those that lost a
// deadlock. Once an answer was lost, the outcome is unknown until a later one tells.
func insistAll(ctx context.Context, n int, do func(open []int) []error) []error {
	errs := make([]error, n)
	unknown := make([]error, n)
	open := make([]int, n)
	for i := range open {
		open[i] = i
	}
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		var again []int
		for i, err := range do(open) {
			at := open[i]
			if errs[at] = err; errors.Is(err, dedup.ErrUnknown) {
				unknown[at] = dedup.ErrUnknown
			}
			if unknown[at] != nil && isFault(err) || dedup.Classify(err) == dedup.FaultContention {
				again = append(again, at)
			}
		}
		if len(again) == 0 {
			return errs
		}
		var ended error
		if try < tries {
			ended = wait(ctx, pause)
		}
		if try == tries || ended != nil {
			for _, at := range again {
				errs[at] = errors.Join(unknown[at], errs[at], ended)
			}
			return errs
		}
		open, pause = again, 4*pause
	}
}

// wait returns after d, or with the cause when ctx ends before.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
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
		r.result.mended(lt)
		r.result.Duplicates += len(lt.followers)
	}
}
