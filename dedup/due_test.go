package dedup

import (
	"fmt"
	"testing"
	"time"
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
		if got := (Cooling{After: c.after, Most: 24 * time.Hour}).Pause(c.replays); got != c.want {
			t.Errorf("after %v, %d replays: %v, want %v", c.after, c.replays, got, c.want)
		}
	}
}

// The statement and the judgement of a row must agree, else letters are looked for in vain or never.
func TestTheRowsThatAreDueAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := Cooling{Reasons: []Reason{"exhausted", "crashed"}, After: time.Minute, Most: 24 * time.Hour, MaxReplays: 3}
	n := 0
	add := func(due bool, group, reason, remark string, status Status, replays int, age time.Duration) {
		t.Helper()
		n++
		k := Identity{group, "t", fmt.Sprint(n)}
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, replays, "+
			"consumer_timestamp, created_at, reason, remark)"+
			" VALUES (?,?,?,?,0,?, UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6), ?, ?)",
			append(keyArgs(k), int(status), replays, age.Microseconds(), reason, remark)...)
		if got := c.Due(w.read(k)); group == "g" && got != due {
			t.Errorf("%s, %v after %d replays, dead for %v, %q: due is %v, want %v", reason, status, replays, age, remark, got,
				due)
		}
	}
	add(true, "g", "exhausted", "", Dead, 0, 61*time.Second)
	add(true, "g", "crashed", "no", Dead, 2, 5*time.Minute)
	add(true, "g", "crashed", "no", Dead, 40, 25*time.Hour)    // to be parked
	add(true, "g", "exhausted", "", Dead, 0, -40*24*time.Hour) // the database's clock has gone back
	add(false, "g", "exhausted", "", Dead, 0, 30*time.Second)
	add(false, "g", "exhausted", "", Dead, 0, -30*time.Second)
	add(false, "g", "exhausted", "", Dead, 2, -3*time.Minute)
	add(false, "g", "exhausted", "", Dead, 1, 90*time.Second)
	add(false, "g", "exhausted", parked+"after 3 replays", Dead, 3, 25*time.Hour)
	add(false, "g", "permanent", "", Dead, 0, time.Hour)
	add(false, "g", "exhausted", "", Failed, 0, time.Hour)
	add(false, "other", "exhausted", "", Dead, 0, time.Hour)
	for limit, want := range map[int]int{100: 4, 2: 2} {
		got, err := w.log.CountDue(t.Context(), "g", c, limit)
		if err != nil || got != want {
			t.Errorf("%d are due (%v), want %d", got, err, want)
		}
	}
	c.MaxReplays = 0
	if got, err := w.log.CountDue(t.Context(), "g", c, 100); err != nil || got != 5 {
		t.Errorf("%d are due without a bound (%v), want 5", got, err)
	}
}
