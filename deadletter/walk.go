package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// walk goes once through the letters that were in the queue when it was counted. It goes on for
// surplus after them: what another reader gave back meanwhile comes before the last ones.
func (l *Letters) walk(
	ctx context.Context, q *queue, surplus time.Duration, each func(context.Context, []*letter) error,
) (seen int, err error) {
	var all time.Time // when as many were read as were there
	for seen < q.found || time.Since(all) < surplus {
		taken, err := q.next(ctx, window)
		if err != nil || len(taken) == 0 {
			return seen, brokerError(err)
		}
		seen += len(taken)
		if err := each(ctx, mapped(taken, l.read)); err != nil {
			return seen, err
		}
		if all.IsZero() && seen >= q.found {
			all = time.Now()
		}
	}
	return seen, nil
}

// Two walks drop stale letters from the queue: the end of a run over a file knows what that has published;
// [Letters.Sweep] comes later and knows nothing.

// sweep drops the letters that are superseded. Only the rows are looked up whose letters may be.
func (r *run) sweep(
	ctx context.Context, may func(*letter) bool, sent map[dedup.Identity]int,
) (seen, dropped int, err error) {
	defer r.queue.leave(context.WithoutCancel(ctx))
	seen, err = r.l.walk(ctx, r.queue, 0, func(ctx context.Context, letters []*letter) error {
		ctx, cancel := r.finishing(ctx)
		defer cancel()
		letters = slices.DeleteFunc(letters, func(lt *letter) bool { return !may(lt) })
		if err := r.l.lookUp(ctx, letters, false); err != nil {
			return err
		}
		letters = slices.DeleteFunc(letters, func(lt *letter) bool {
			return !isSuperseded(lt.row, lt.info.Replays, sent[lt.id.Identity])
		})
		if err := r.ackAll(letters); err != nil {
			return err
		}
		dropped += len(letters)
		r.tally.report()
		return r.l.hook(pointAcked)
	})
	return seen, dropped, err
}

// isSuperseded reports whether a letter that was made when its row had so many replays may go: its identity has ended,
// or its row was reopened since, and a copy of its message goes on. That is so when the row was claimed, because the
// copy has reached a worker, and when this run has sent one after the replay with the number sent (0: it has not). A
// letter that the daemon has made since has as many replays as the row: it is the message's only copy, also for the
// moment in which its row does not say dead yet.
func isSuperseded(row dedup.Row, replays, sent int) bool {
	switch row.Status {
	case dedup.Success, dedup.Discarded:
		return true
	case dedup.Processing, dedup.Failed:
		claimed := row.Status == dedup.Processing || row.Attempts > 0
		return row.Replays > replays && (claimed || row.Replays == sent)
	}
	return false
}

// SweepResult is what a sweep met.
type SweepResult struct{ Found, Seen, Dropped int }

// Sweep walks once through the letters that are in the dead-letter queue when it begins and drops those that stand for
// nothing any more: their identity has ended; or its row was reopened after they were made, and claimed since, so that
// its message has reached a worker. A row that was reopened and not claimed may stand for a message that nobody has
// published, and its letter stays, for a later sweep or replay. It holds what stays until its end, so nobody else sees
// that meanwhile, and RabbitMQ counts it as a delivery.
func (l *Letters) Sweep(ctx context.Context) (res SweepResult, err error) {
	r := newRun(l, Filter{All: true}, ReplayOptions{})
	err = r.connected(ctx, func() (err error) {
		if err = r.dial(ctx); err == nil {
			err = r.queue.count(ctx)
		}
		if err != nil {
			return err
		}
		res.Found = r.queue.found
		res.Seen, res.Dropped, err = r.sweep(ctx, func(*letter) bool { return true }, nil)
		return err
	})
	if err != nil {
		err = fmt.Errorf("sweep the dead-letter queue: %w", err)
	}
	return res, err
}

// SurveyOptions say how to look through the letters.
type SurveyOptions struct {
	// Each is called for every letter, in the order of the queue. Its error ends the survey.
	Each func(Surveyed) error
	// Adopt, if set, chooses by their keys letters without a row; each gets one that says dead. By is who does it.
	Adopt func(dedup.Identity) bool
	By    string
	// Force also adopts letters that may have had their effect: see ReplayOptions.Force.
	Force bool
	// Progress, if set, is called after every window of letters, by the goroutine that called Survey.
	Progress func(Progress)
}

// Surveyed is one letter with the row it belongs to.
type Surveyed struct {
	Row     dedup.Row    // as looked up when the letter was read; Absent when there is none
	Replays int          // that its row had when it was made, as it says
	Reason  dedup.Reason // why it is dead: by its row, else by its headers; "" when nothing tells
	Why     Why          // why a letter without a row is not adopted without Force; "" when it is
	Adopted bool
	Err     error // of the adoption
}

// SurveyResult is what a survey met.
type SurveyResult struct {
	Found, Seen, Adopted int
	// Others is how many other consumers of the queue were there at the beginning or at the end. What they hold was not
	// seen.
	Others int
}

// surplus is how long a survey goes on behind the letters that were there at the beginning.
const surplus = 3 * time.Second

// Survey reads all letters and gives every one back to its place; it acks none. Letters that it holds are not there for
// anybody else until it ends. RabbitMQ counts it as a delivery of each letter, of which the queue allows a million.
func (l *Letters) Survey(ctx context.Context, o SurveyOptions) (res SurveyResult, err error) {
	q, err := l.dial(ctx)
	if err == nil {
		defer func() { err = errors.Join(err, q.close(ctx)) }()
		err = q.count(ctx)
	}
	if err == nil {
		res.Found, res.Others = q.found, q.others
		res.Seen, err = l.walk(ctx, q, surplus, func(ctx context.Context, letters []*letter) error {
			err := l.surveyed(ctx, letters, o, &res)
			if res.Seen += len(letters); err == nil && o.Progress != nil {
				o.Progress(Progress{Seen: res.Seen, Found: res.Found})
			}
			return err
		})
	}
	if err == nil {
		var consumers int
		_, consumers, err = q.depth(ctx)
		res.Others = max(res.Others, consumers-len(q.all))
	}
	if err != nil {
		err = fmt.Errorf("look through the dead letters: %w", err)
	}
	return res, err
}

func (l *Letters) surveyed(ctx context.Context, letters []*letter, o SurveyOptions, res *SurveyResult) error {
	if err := l.lookUp(ctx, letters, false); err != nil {
		return err
	}
	retention, err := l.o.remembers(ctx)
	if err != nil {
		return err
	}
	adopted := map[dedup.Identity]bool{}
	for _, lt := range letters {
		seen := Surveyed{Row: lt.row, Replays: lt.info.Replays, Reason: lt.reason()}
		seen.Row.Identity = lt.id.Identity
		if lt.row.Status == dedup.Absent && lt.formerRow.Status != dedup.Absent {
			seen.Row = lt.formerRow
		}
		if seen.Row.Status == dedup.Absent {
			age, dated := lt.age(time.Now())
			_, seen.Why = decideAbsent(situation{
				force: o.Force, keyTaken: lt.conflicted, age: age, dated: dated, retention: retention,
			})
			if o.Adopt != nil && seen.Why == "" && o.Adopt(lt.id.Identity) && !adopted[lt.id.Identity] {
				l.adopt(ctx, lt, &seen, o.By)
				if adopted[lt.id.Identity] = seen.Adopted; seen.Adopted {
					res.Adopted++
				}
			}
		}
		if isFault(seen.Err) {
			return seen.Err
		}
		if err := o.Each(seen); err != nil {
			return err
		}
	}
	return nil
}

// adopt gives a letter without a row one. Several letters of one message share it.
func (l *Letters) adopt(ctx context.Context, lt *letter, seen *Surveyed, by string) {
	reason := lt.info.Reason
	switch {
	case reason != "":
	case lt.filed:
		reason = dedup.ReasonUnidentified
	case lt.id.Identity.Tag == wire.TagConflict:
		reason = dedup.ReasonConflict
	default:
		reason = dedup.ReasonPermanent // so that only a person replays what nobody knows the story of
	}
	cause := cmp.Or(lt.info.Error, "the letter does not say why it is dead")
	insist(ctx, []*letter{lt}, func([]*letter) []error {
		return []error{l.o.Records.Adopt(ctx, lt.entry(), lt.info.Replays, reason, "adopted: "+cause, by)}
	})
	seen.Reason, seen.Adopted = reason, lt.err == nil
	if !errors.Is(lt.err, dedup.ErrLost) { // else it has a row by now
		seen.Err = lt.err
	}
}
