package dedup

import (
	"fmt"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestThePauseOfADeadRowGrowsUpToItsBound(t *testing.T) {
	for _, c := range []struct {
		after   time.Duration
		replays int
		want    time.Duration
	}{
		{time.Minute, 0, time.Minute}, {time.Minute, 1, 2 * time.Minute}, {time.Minute, 5, 32 * time.Minute},
		{time.Minute, 10, 1024 * time.Minute}, {time.Minute, 11, 24 * time.Hour}, {time.Minute, 1000, 24 * time.Hour},
		{720 * time.Hour, 0, 720 * time.Hour}, {720 * time.Hour, 3, 720 * time.Hour}, {time.Second, 63, 24 * time.Hour},
		{24 * time.Hour, 0, 24 * time.Hour}, {24 * time.Hour, 1, 24 * time.Hour},
	} {
		assert.Is(t, (Cooling{After: c.after, Most: 24 * time.Hour}).Pause(c.replays), c.want,
			"after %v, %d replays", c.after, c.replays)
	}
}

// The statement and the judgement of a row must agree, else letters are looked for in vain or never.
func TestTheRowsThatAreDueAreCounted(t *testing.T) {
	w := newWorld(t)
	c := Cooling{Reasons: []Reason{"exhausted", "crashed"}, After: time.Minute, Most: 24 * time.Hour, MaxReplays: 3}
	for i, r := range []struct {
		due     bool
		status  Status
		reason  Reason
		replays int
		age     time.Duration
		remark  string
	}{
		{true, Dead, "exhausted", 0, 61 * time.Second, ""},
		{true, Dead, "crashed", 2, 5 * time.Minute, "no"},
		{true, Dead, "crashed", 40, 25 * time.Hour, "no"},          // to be parked
		{true, Dead, "exhausted", 0, -40 * 24 * time.Hour, "back"}, // the database's clock has gone back
		{false, Dead, "exhausted", 0, 30 * time.Second, ""},
		{false, Dead, "exhausted", 0, -30 * time.Second, ""},
		{false, Dead, "exhausted", 2, -3 * time.Minute, ""},
		{false, Dead, "exhausted", 1, 90 * time.Second, ""},
		{false, Dead, "exhausted", 3, 25 * time.Hour, parked + "after 3 replays"},
		{false, Dead, "permanent", 0, time.Hour, ""},
		{false, Failed, "exhausted", 0, time.Hour, ""},
	} {
		k := key(fmt.Sprint(i))
		w.put(Row{Identity: k, Version: Version{Status: r.status, Replays: r.replays}, Reason: r.reason, Remark: r.remark,
			Age: r.age})
		assert.Is(t, c.Due(w.read(k)), r.due, "%+v: due", r)
	}
	w.put(Row{Identity: Identity{"other", "t", "k"}, Version: Version{Status: Dead}, Reason: "exhausted", Age: time.Hour})
	for _, q := range []struct{ replays, limit, want int }{{3, 100, 4}, {3, 2, 2}, {0, 100, 5}} {
		c.MaxReplays = q.replays
		assert.Is(t, require.Get(w.log.CountDue(t.Context(), "g", c, q.limit))(t), q.want, "%+v: due are", q)
	}
}
