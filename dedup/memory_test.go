package dedup

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Every state, version, age and action, in memory and on the real database: both answer the same and leave the same
// rows, so that what a handler's test sees is what production does.
func TestTheMemoryDoesWhatTheDatabaseDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	log, memory, err := NewMemory(w.log.Options(), time.Now)
	wantError(t, "a log in memory", err, nil)
	in := &world{t: t, log: log, memory: memory}
	all := slices.DeleteFunc(trials(), func(tr trial) bool {
		return tr.action == actionTakeDone || tr.action == actionTakeOpen // another log's, which no handler meets
	})
	w.prepare(all)
	now := time.Now().UTC()
	keys := make([]Identity, len(all))
	for i, tr := range all {
		if keys[i] = tr.key; tr.real.Status != Absent {
			memory.rows[tr.key] = Row{
				Identity: tr.key, Version: tr.real, Body: []byte("body"), At: now.Add(-tr.age), CreatedAt: now,
			}
		}
	}
	moved := 0
	for _, tr := range all {
		got, want := tr.run(t.Context(), in), tr.run(t.Context(), w)
		if want == nil {
			moved++
		}
		for _, one := range []error{ErrLost, ErrExists, ErrStale, ErrTransition} {
			if errors.Is(got, one) != errors.Is(want, one) || (got == nil) != (want == nil) {
				t.Errorf("%s: %v in memory, %v in the database", tr.name, got, want)
			}
		}
	}
	got, want := rowsOfAll(in, keys), rowsOfAll(w, keys)
	about := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute })
	for _, k := range keys {
		diff := cmp.Diff(want[k], got[k], cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(time.Minute), about,
			cmpopts.IgnoreUnexported(Row{}))
		assert.Is(t, diff, "", "%s (-database +memory)", k.Key)
	}
	assert.AtLeast(t, moved, 100, "only trials moved a row")
}

func rowsOfAll(w *world, keys []Identity) map[Identity]Row {
	w.t.Helper()
	return require.Get(w.log.ReadAll(w.t.Context(), keys))(w.t)
}

// Given effects whose transaction is not committed, or which are taken back in it, then the log knows nothing of them.
func TestTheMemoryForgetsWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	log, memory, err := NewMemory(LogOptions{
		Table: "consumer_log", Lease: testLease, Delays: []time.Duration{testDelay}, MaxAttempts: testMax,
	}, time.Now)
	wantError(t, "a log in memory", err, nil)
	w := &world{t: t, log: log, memory: memory}
	a, b, c := key("a"), key("b"), key("c")
	wantError(t, "insert", log.InsertSuccess(t.Context(), nil, []Entry{entryOf(a)}), nil)
	claim := w.claimAt(b)
	wantError(t, "hold", log.Hold(t.Context(), nil, []Claim{claim}), nil)
	memory.Committed()
	wantError(t, "insert", log.InsertSuccess(t.Context(), nil, []Entry{entryOf(a), entryOf(c)}), nil)
	wantError(t, "take back", log.TakeBack(t.Context(), nil, []Identity{a}), nil)
	memory.Committed()
	for k, want := range map[Identity]Status{a: Absent, b: Processing, c: Success} {
		assert.Is(t, w.read(k).Status, want, "%s", k.Key)
	}
	wantError(t, "insert again", log.InsertSuccess(t.Context(), nil, []Entry{entryOf(c)}), ErrExists)
}

// Given a row in memory that waits as its handler has said, then it is claimed when that time is over, and no sooner.
func TestTheMemoryKeepsWhenARowIsDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	log, memory, err := NewMemory(LogOptions{
		Table: "consumer_log", Lease: testLease, Delays: []time.Duration{testDelay}, MaxAttempts: testMax,
	}, func() time.Time { return now })
	wantError(t, "a log in memory", err, nil)
	w := &world{t: t, log: log, memory: memory}
	k := key("waits")
	require.Get(first(log.FailAll(t.Context(), []Failure{{w.claim(absent(k), "a"), "boom", 10 * time.Minute}})))(t)
	for _, want := range []error{ErrLost, nil} {
		now = now.Add(5 * time.Minute)
		row := w.read(k)
		if row.Due != (want == nil) {
			t.Errorf("%+v, want it due: %v", row, want == nil)
		}
		_, err := log.Claim(t.Context(), row, entryOf(k), "b")
		wantError(t, "claim", err, want)
	}
}
