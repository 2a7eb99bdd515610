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
		wg.Go(func() { insist(ctx, group, func(open []*letter) []error { return do(ctx, open, token) }) })
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

// insist changes the rows of letters, and repeats the changes whose answer was lost, which the log recognises as its
// own, and those that lost a deadlock. Once an answer was lost, the outcome is unknown until a later one tells.
func insist(ctx context.Context, letters []*letter, do func(open []*letter) []error) {
	unknown := map[*letter]error{}
	open := letters
	for try, pause := 1, 50*time.Millisecond; len(open) > 0; try, pause = try+1, 4*pause {
		var again []*letter
		for i, err := range do(open) {
			lt := open[i]
			if lt.err = err; errors.Is(err, dedup.ErrUnknown) {
				unknown[lt] = dedup.ErrUnknown
			}
			if unknown[lt] != nil && isFault(err) || mysqldb.Classify(err) == mysqldb.FaultContention {
				again = append(again, lt)
			}
		}
		var ended error
		if len(again) > 0 && try < tries {
			ended = wait.For(ctx, pause)
		}
		if open = again; try == tries || ended != nil {
			for _, lt := range again {
				lt.err = errors.Join(unknown[lt], lt.err, ended)
			}
			break
		}
	}
	for _, lt := range letters {
		lt.why = whyNot(lt.err)
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
