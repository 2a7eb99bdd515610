package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// writers is how many transactions change rows at once: MySQL commits what waits together in one write.
	writers = 4
	// tries is how often a change of a row is tried whose answer was lost, or that met another transaction.
	tries = 4
)

// change changes the rows of letters, some in one transaction and several transactions at a time, and notes why a
// letter stays whose row could not be. The error is that of a database that does not answer, after which the run must
// end.
func (r *run) change(
	ctx context.Context, letters []*letter, do func(context.Context, []*letter, string) []error,
) error {
	if len(letters) == 0 {
		return nil
	}
	var wg sync.WaitGroup
	for group := range slices.Chunk(letters, (len(letters)+writers-1)/writers) {
		r.calls++
		token := fmt.Sprintf("%s%d", r.token, r.calls)
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
	switch mysqldb.Classify(err) {
	case mysqldb.FaultRefused, mysqldb.FaultContention, mysqldb.FaultUnavailable:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// insist is insistAll for one change.
func insist(ctx context.Context, do func() error) error {
	return insistAll(ctx, 1, func([]int) []error { return []error{do()} })[0]
}

// insistAll repeats those of n changes whose answer was lost, which the log recognises as its own, and those that lost
// a deadlock. Once an answer was lost, the outcome is unknown until a later one tells.
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
			if unknown[at] != nil && isFault(err) || mysqldb.Classify(err) == mysqldb.FaultContention {
				again = append(again, at)
			}
		}
		if len(again) == 0 {
			return errs
		}
		var ended error
		if try < tries {
			ended = wait.For(ctx, pause)
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
