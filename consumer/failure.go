package consumer

import (
	"context"
	"fmt"
	"sync"

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
		if f.it.row = row; row.Attempts >= w.c.cfg.MaxAttempts {
			f.it.bury(dedup.ReasonExhausted, f.cause.Error())
		} else {
			w.retry(f.it, Retried, w.c.cfg.RetryDelays[row.Attempts-1], f.cause.Error())
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

// counting commits failed attempts: those of claims, or of messages that have none and no row.
func (w *worker) counting(some []blamed) transition {
	var claimed []dedup.Failure
	var fresh []dedup.Blamed
	for _, f := range some {
		if cause := f.cause.Error(); f.it.claim != nil {
			claimed = append(claimed, dedup.Failure{Claim: *f.it.claim, Cause: cause})
		} else {
			fresh = append(fresh, dedup.Blamed{Entry: f.it.fullEntry(), Cause: cause})
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

// strikes are of messages that have met trouble while others were applied: a statement that was cut off because it took
// too long, a dependency that failed. The slow path may give them back each time, and must know them when they come
// again. They are known to this process alone, which only makes its judgement later.
type strikes struct {
	mu  sync.Mutex
	met map[dedup.Identity]strike // guarded by mu
}

type strike struct {
	times   int    // that it met trouble
	applied uint64 // the engine's count of commits at the last trouble
	backs   int    // how often it was given back
}

const (
	// maxStrikes bounds the memory for a database that is slow for everybody.
	maxStrikes = 10_000
	// troublesForgiven is how often a message may meet trouble, while others succeed, before the trouble is its failure.
	troublesForgiven = 2
)

// suspect takes in one more trouble of a message, and reports whether the message itself must be the cause.
func (w *worker) suspect(it *item) (times int, guilty bool) {
	return w.c.strikes.blamed(it.id.Identity, w.c.commits.Load())
}

// blamed takes in one more trouble, and the engine's count of commits now. Who is blamed is forgotten.
func (s *strikes) blamed(k dedup.Identity, applied uint64) (times int, blamed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	if one.times == 0 || applied > one.applied {
		one.times++
		one.applied = applied
	}
	if s.keep(k, one); one.times > troublesForgiven {
		delete(s.met, k)
	}
	return one.times, one.times > troublesForgiven
}

// back takes in that a message is given back, and says for which time.
func (s *strikes) back(k dedup.Identity) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.met[k]
	one.backs++
	s.keep(k, one)
	return one.backs
}

// keep remembers. The caller holds mu.
func (s *strikes) keep(k dedup.Identity, one strike) {
	if s.met == nil || len(s.met) >= maxStrikes {
		s.met = map[dedup.Identity]strike{}
	}
	s.met[k] = one
}

// clear forgets a message that came to an end.
func (s *strikes) clear(k dedup.Identity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.met, k)
}
