package dedup

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// besides is a world in memory with the rows that the trials meet.
func (w *world) besides(all []trial) *world {
	log, memory, err := NewMemory(w.log.Options(), time.Now)
	assert.OK(w.t, err)
	now := time.Now().UTC()
	for _, tr := range all {
		if tr.real.Status != Absent {
			memory.rows[tr.key] = Row{
				Identity: tr.key, Version: tr.real, Body: []byte("body"), At: now.Add(-tr.age), CreatedAt: now,
			}
		}
	}
	return &world{t: w.t, log: log, memory: memory}
}

// sameErrors compares what came of a trial in memory and in the database.
func (tr trial) sameErrors(t *testing.T, got, want error) {
	t.Helper()
	for _, one := range []error{ErrLost, ErrExists, ErrStale, ErrTransition} {
		assert.That(t, errors.Is(got, one) == errors.Is(want, one) && (got == nil) == (want == nil),
			"%s: %v in memory, %v in the database", tr.name, got, want)
	}
}

// sameRows compares the rows that trials have left in memory and in the database.
func (w *world) sameRows(in *world, keys []Identity) {
	w.t.Helper()
	got, want := rowsOfAll(in, keys), rowsOfAll(w, keys)
	about := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute })
	for _, k := range keys {
		diff := cmp.Diff(want[k], got[k], cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(time.Minute), about,
			cmpopts.IgnoreUnexported(Row{}))
		assert.Is(w.t, diff, "", "%s (-database +memory)", k.Key)
	}
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
	assert.OK(t, err)
	w := &world{t: t, log: log, memory: memory}
	a, b, c := key("a"), key("b"), key("c")
	assert.OK(t, log.InsertSuccess(t.Context(), nil, []Entry{entryOf(a)}))
	claim := w.claimAt(b)
	assert.OK(t, log.Hold(t.Context(), nil, []Claim{claim}))
	memory.Committed()
	assert.OK(t, log.InsertSuccess(t.Context(), nil, []Entry{entryOf(a), entryOf(c)}))
	assert.OK(t, log.TakeBack(t.Context(), nil, []Identity{a}))
	memory.Committed()
	for k, want := range map[Identity]Status{a: Absent, b: Processing, c: Success} {
		assert.Is(t, w.read(k).Status, want, "%s", k.Key)
	}
	assert.Error(t, log.InsertSuccess(t.Context(), nil, []Entry{entryOf(c)}), ErrExists, "insert again")
}

// Given a row in memory that waits as its handler has said, then it is claimed when that time is over, and no sooner.
func TestTheMemoryKeepsWhenARowIsDue(t *testing.T) {
	t.Parallel()
	now := time.Now()
	log, memory, err := NewMemory(LogOptions{
		Table: "consumer_log", Lease: testLease, Delays: []time.Duration{testDelay}, MaxAttempts: testMax,
	}, func() time.Time { return now })
	assert.OK(t, err)
	w := &world{t: t, log: log, memory: memory}
	k := key("waits")
	require.Get(first(log.FailAll(t.Context(), []Failure{{w.claim(absent(k), "a"), "boom", 10 * time.Minute}})))(t)
	for _, want := range []error{ErrLost, nil} {
		now = now.Add(5 * time.Minute)
		row := w.read(k)
		assert.That(t, row.Due == (want == nil), "%+v, want it due: %v", row, want == nil)
		_, err := log.Claim(t.Context(), row, entryOf(k), "b")
		assert.Error(t, err, want, "claim")
	}
}
