package dedup

import (
	"database/sql"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given several daemons that add to the same minutes, then counts add up, of the messages that wait the largest number
// stays as long as anybody knows one, and each group, queue and minute has its own; a minute of nobody is not there.
func TestMinutesAddUp(t *testing.T) {
	w := newWorld(t)
	add := func(group, queue string, ago time.Duration, m Minute) {
		t.Helper()
		require.OK(t, w.log.AddMinute(t.Context(), group, queue, ago, m))
	}
	known := func(n int64) sql.Null[int64] { return sql.Null[int64]{V: n, Valid: true} }
	one := Minute{Applied: 5, Retried: 2, Dead: map[Reason]int64{ReasonCrashed: 1}, Waiting: known(7)}
	one.Lag[0], one.Lag[lagBuckets-1] = 4, 1
	other := Minute{Applied: 3, Dead: map[Reason]int64{ReasonCrashed: 2, ReasonConflict: 1}, Waiting: known(9)}
	other.Lag[0] = 3
	add("g", "q", 2*time.Hour, one)
	add("g", "q", 2*time.Hour, other)
	add("g", "q", 2*time.Hour, Minute{Retrying: known(1)})
	add("g", "q", 0, Minute{})
	add("g", "other", 2*time.Hour, Minute{Applied: 100})
	add("h", "q", 2*time.Hour, Minute{Applied: 100})

	all := require.Get(w.log.Minutes(t.Context(), "g", "q", 3*time.Hour))(t)
	assert.Is(t, len(all), 2, "minutes")
	want := Minute{At: all[0].At, Applied: 8, Retried: 2, Dead: map[Reason]int64{ReasonCrashed: 3, ReasonConflict: 1},
		Waiting: known(9), Retrying: known(1)}
	want.Lag[0], want.Lag[lagBuckets-1] = 7, 1
	d := cmp.Diff([]Minute{want, {At: all[1].At, Dead: map[Reason]int64{}}}, all)
	assert.That(t, d == "", "the minutes (-want +got):\n%s", d)
	apart := all[1].At.Sub(all[0].At)
	assert.That(t, apart == 2*time.Hour || apart == 2*time.Hour+time.Minute, "they are %v apart", apart)
	assert.Is(t, len(require.Get(w.log.Minutes(t.Context(), "g", "q", time.Hour))(t)), 1, "minutes of the last hour")
	assert.Is(t, len(LagBounds())+1, lagBuckets, "buckets of the lag")
}
