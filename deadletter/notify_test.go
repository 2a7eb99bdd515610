package deadletter_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// listener is a Notifier that remembers what it was told.
type listener struct {
	mu    sync.Mutex
	calls [][]deadletter.Letter
	fail  func(call int) error // called with mu held; nil: never
}

func (l *listener) Notify(_ context.Context, letters []deadletter.Letter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, slices.Clone(letters))
	if l.fail != nil {
		return l.fail(len(l.calls))
	}
	return nil
}

func (l *listener) keys() (keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		for _, letter := range c {
			keys = append(keys, letter.Key)
		}
	}
	return keys
}

// compensate runs Compensate until stop, or the end of the test.
func (w *world) compensate(o deadletter.CompensateOptions) (stop func()) {
	w.T.Helper()
	if o.VisibilityDelay == 0 {
		o.VisibilityDelay = time.Microsecond
	}
	letters := w.letters()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	done := make(chan error, 1)
	go func() { done <- letters.Compensate(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.OK(w.T, <-done, "Compensate:")
	})
	w.T.Cleanup(stop)
	return stop
}

// bookmarked makes everything so far old news.
func (w *world) bookmarked() {
	w.T.Helper()
	require.Get(w.Records.Bookmark(w.T.Context(), group))(w.T)
}

func (w *world) wantTold(l *listener, want ...string) {
	w.T.Helper()
	w.Eventually("all are told", func() (string, bool) { return "", len(l.keys()) >= len(want) })
	w.settled()
	if diff := cmp.Diff(want, l.keys()); diff != "" {
		w.T.Errorf("told (-want +got):\n%s", diff)
	}
}

// settled waits until the bookmark is behind the last step.
func (w *world) settled() {
	w.T.Helper()
	w.Eventually("the bookmark at the end", func() (string, bool) {
		at, err := w.Records.Bookmark(w.T.Context(), group)
		if err != nil {
			return err.Error(), false
		}
		var last int64
		err = w.Pool.QueryRowContext(w.T.Context(), "SELECT MAX(id) FROM consumer_log_event").Scan(&last)
		return "", err == nil && at == last
	})
}

func TestEveryNewLetterIsToldInItsOrder(t *testing.T) {
	w := newWorld(t)
	w.dead(dedup.ReasonExhausted, names("old", 3)...)
	w.bookmarked()
	want := names("new", 250)
	w.dead(dedup.ReasonMalformed, want...)
	w.inState("applied after a failure", dedup.Failed)
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: told})
	w.wantTold(told, want...)
	for _, c := range told.calls {
		assert.AtMost(t, len(c), 100, "letters at once")
	}
	row := w.Row(want[7])
	letter := told.calls[0][7]
	if letter.Reason != "malformed" || letter.Remark != "no" || !letter.DeadAt.Equal(row.DeadAt) || letter.BodyHash == "" {
		t.Errorf("told %+v of %+v", letter, row)
	}
	// when one more dies, then it is told, too
	w.inState("one more", dedup.Dead)
	w.wantTold(told, append(want, "one more")...)
}

func TestALetterThatIsDeadNoMoreIsNotToldAndOneThatDiedAgainIs(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "replayed", "dies again", "stays")
	for _, key := range []string{"replayed", "dies again"} {
		row := w.Row(key)
		require.Get(w.Records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity},
			dedup.ReplayNote{By: "me", Token: key}))(w.T)
	}
	again := w.Row("dies again")
	w.Must(w.Records.Dead(t.Context(), again, dedup.Entry{Identity: again.Identity}, "crashed", "again"))
	told := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: told})
	w.wantTold(told, "stays", "dies again")
	if letter := told.calls[0][1]; letter.Replays != 1 || letter.Reason != "crashed" {
		t.Errorf("told %+v, want its second death", letter)
	}
}

// A process that dies between telling and noting it tells again, and nothing newer overtakes that; one that noted it is
// not asked to tell again by the next.
func TestALetterIsToldUntilThatIsNoted(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	w.dead(dedup.ReasonExhausted, "k")
	dies := &listener{fail: func(int) error { return errors.New("killed") }}
	stop := w.compensate(deadletter.CompensateOptions{Notifier: dies})
	w.Eventually("told", func() (string, bool) { return "", len(dies.keys()) > 0 })
	w.inState("newer", dedup.Dead)
	w.Eventually("told again", func() (string, bool) { return "", len(dies.keys()) > 1 })
	stop()
	next := new(listener)
	stop = w.compensate(deadletter.CompensateOptions{Notifier: next})
	w.wantTold(next, "k", "newer")
	stop()
	w.inState("another", dedup.Dead)
	last := new(listener)
	w.compensate(deadletter.CompensateOptions{Notifier: last})
	w.wantTold(last, "another")
}

// A worker may commit a letter's row after one that was written later: its step has a lower number and appears behind.
func TestALetterThatIsCommittedLateIsTold(t *testing.T) {
	w := newWorld(t)
	w.bookmarked()
	tx, err := w.Pool.BeginTx(t.Context(), nil)
	w.Must(err)
	defer tx.Rollback() // after the commit there is nothing to roll back
	d := message("late", "{}")
	e := entry(w.Identify(d), d)
	require.Get(tx.ExecContext(t.Context(),
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason,
			consumer_timestamp, created_at, dead_at)
		VALUES (?, ?, ?, 3, 0, 'malformed', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`, e.Group, e.Tag,
		e.Key))(w.T)
	_, err = tx.ExecContext(t.Context(), "INSERT INTO consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, "+
		"attempt, replays) VALUES (?, ?, ?, UTC_TIMESTAMP(6), 3, 0, 0)",
		e.Group, e.Tag, e.Key)
	w.Must(err)
	w.inState("early", dedup.Dead)
	told := new(listener)
	proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
	var looks atomic.Int32
	proxy.DropReply(func(piece []byte) bool { // counts, never drops
		if bytes.Contains(piece, []byte("FROM `consumer_log_event` WHERE id >")) {
			looks.Add(1)
		}
		return false
	})
	w.dsn = proxy.Through(w.dsn)
	w.compensate(deadletter.CompensateOptions{Notifier: told, VisibilityDelay: 10 * time.Second})
	w.Eventually("the story is read while one step of it is not visible", func() (string, bool) {
		return "", looks.Load() > 0
	})
	w.Must(tx.Commit())
	w.wantTold(told, "late", "early")
}
