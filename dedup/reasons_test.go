package dedup

import (
	"fmt"
	"testing"
	"time"
)

func TestCountReasonsCountsWhatTheFilterChooses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, reason := range []string{"permanent", "exhausted", "permanent", "permanent"} {
		w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason, "+
			"consumer_timestamp, created_at)"+
			" VALUES (?, ?, ?, 3, 1, ?, '2026-11-21 12:00:00' + INTERVAL ? MINUTE, UTC_TIMESTAMP(6))",
			append(keyArgs(Identity{"g", fmt.Sprint("t", i%2), fmt.Sprint(i)}), reason, i)...)
	}
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, reason, " +
		"consumer_timestamp, created_at)" +
		" VALUES ('other', 't0', 'k', 3, 1, 'permanent', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)), ('g', 't0', 'failed', 2, 1, " +
		"NULL, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))")
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{}, fmt.Sprint([]ReasonCount{{"permanent", 3, noon, noon.Add(3 * time.Minute)},
			{"exhausted", 1, noon.Add(time.Minute), noon.Add(time.Minute)}})},
		{Filter{Tag: "t0"}, fmt.Sprint([]ReasonCount{{"permanent", 2, noon, noon.Add(2 * time.Minute)}})},
		{Filter{Reasons: []Reason{"exhausted"}, Limit: 5000},
			fmt.Sprint([]ReasonCount{{"exhausted", 1, noon.Add(time.Minute), noon.Add(time.Minute)}})},
		{Filter{Keys: []string{"0", "3"}, Since: noon.Add(time.Second)},
			fmt.Sprint([]ReasonCount{{"permanent", 1, noon.Add(3 * time.Minute), noon.Add(3 * time.Minute)}})},
		{Filter{Until: noon}, "[]"},
	} {
		c.f.Group = "g"
		got, err := w.log.CountReasons(t.Context(), c.f)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%+v: %v, %v; want %s", c.f, got, err, c.want)
		}
	}
}

func TestCountReasonsReadsDeadRowsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wantError(t, "insert", w.insertSuccess(entries(10_000)...), nil)
	var letters []Letter
	for i := range 50 {
		letters = append(letters, Letter{entryOf(key(fmt.Sprint("dead ", i))), "malformed", ""})
	}
	wantError(t, "dead", w.log.DeadAll(t.Context(), letters), nil)
	w.exec("ANALYZE TABLE consumer_log")
	for _, f := range []Filter{{}, {Tag: "t"}, {Since: time.Now().Add(-time.Hour)}, {Keys: []string{"dead 1"}}} {
		f.Group = "g"
		s := w.log.reasonsText(f)
		w.wantIndexed(fmt.Sprintf("%+v", f), 200, s.String(), s.args...)
	}
}
