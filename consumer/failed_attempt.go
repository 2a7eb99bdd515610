package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
)

// blamed is a message that had its attempt, and what the handler, or the service, said of it.
type blamed struct {
	it    *item
	cause error
}

// charge counts failed attempts and says what comes next. It is the one place that does, for claims and for who was
// blamed in the fast path, up to 200 in one commit. What failed for good needs no attempt: its row says dead when its
// letter is confirmed, and keepReasons ends its claim before that. Met are those without a claim that have a row by
// now: nothing is counted.
func (w *worker) charge(ctx context.Context, all []blamed) (met []*item, err error) {
	var counted []blamed
	for _, f := range all {
		if !IsPermanent(f.cause) {
			counted = append(counted, f)
			continue
		}
		if f.it.claim != nil {
			f.it.row = f.it.claim.Row()
		}
		f.it.bury(permanentReason(f.cause), f.cause.Error())
	}
	lost, err := moveRows(ctx, w, counted, w.counting, func(f blamed, row dedup.Row) {
		f.it.row = row
		delay, left := decide.AfterFailure(row.Attempts, w.c.cfg.MaxAttempts, w.c.cfg.RetryDelays)
		if after := w.ownDelay(f); after > 0 && left {
			delay = decide.Fit(w.c.cfg.RetryDelays, after)
		}
		if left {
			w.retry(f.it, Retried, delay, f.cause.Error())
		} else {
			f.it.bury(dedup.ReasonExhausted, f.cause.Error())
		}
	})
	for _, f := range lost {
		if f.it.claim != nil {
			w.leaseLost(f.it)
		} else {
			met = append(met, f.it)
		}
	}
	return met, err
}

// ownDelay is when the next attempt may begin, if the handler has said so; 0: it has not.
func (w *worker) ownDelay(f blamed) time.Duration { return min(retryIn(f.cause), w.c.cfg.MaxDelay) }

// counting commits failed attempts: those of claims, or of messages that have none and no row.
func (w *worker) counting(some []blamed) transition {
	var claimed []dedup.Failure
	var fresh []dedup.Blamed
	for _, f := range some {
		if cause := f.cause.Error(); f.it.claim != nil {
			claimed = append(claimed, dedup.Failure{Claim: *f.it.claim, Cause: cause, After: w.ownDelay(f)})
		} else {
			fresh = append(fresh, dedup.Blamed{From: f.it.row, Entry: f.it.fullEntry(), Cause: cause, After: w.ownDelay(f)})
		}
	}
	owner := w.owner()
	return func(ctx context.Context) (rows []dedup.Row, errs []error) {
		if fresh != nil {
			rows, errs = w.c.records.BlameAll(ctx, fresh, owner)
		} else {
			rows, errs = w.c.records.FailAll(ctx, claimed)
		}
		if firstButLost(errs) == nil {
			w.c.at(PointFailed)
		}
		return rows, errs
	}
}

// 5. record writes down the failed attempts of the blamed, whose groups have come to an end. Who has a row by now goes
// its row's way. A process that dies before this has counted nothing either.
func (w *worker) record(ctx context.Context, b *batch) error {
	met, err := w.charge(ctx, b.blamed)
	b.blamed = nil
	if err != nil || len(met) == 0 {
		return err
	}
	gone, err := w.lookAgain(ctx, b, met, false)
	w.leaseLost(gone...) // the row that was met is not there any more
	return err
}

// failedOften is the failure of a message that met the same trouble too often.
func failedOften(err error, times int) error {
	return fmt.Errorf("met trouble %d times, while other messages succeeded: %w", times, err)
}

// suspect takes in one more trouble of a message, and reports whether the message itself must be the cause.
func (w *worker) suspect(it *item) (times int, guilty bool) {
	return w.c.strikes.Blamed(it.id.Identity, w.c.commits.Load())
}
