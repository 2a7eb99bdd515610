package operator

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestGaugesTellOfTheLog(t *testing.T) {
	t.Parallel()
	db := require.First(dedup.Open(t.Context(), stack.MySQL(t), dedup.OpenOptions{}))(t)
	pool := require.Get(db.DB())(t)
	defer pool.Close()
	require.OK(t, dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Table: "consumer_log"}))
	records := require.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 5,
	}))(t)
	reg := prometheus.NewRegistry()
	registered := &registry{Registerer: reg}
	g := newFigures(0, deadletter.CompensateOptions{}, registered)
	if registered.err != nil {
		t.Fatal(registered.err)
	}
	says := func(want map[string]float64) {
		t.Helper()
		got := map[string]float64{}
		for _, f := range require.Get(reg.Gather())(t) {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				got[name] = m.GetGauge().GetValue()
				if older := got[name] - want[name]; strings.Contains(name, "seconds") && older > 0 && older < 60 {
					got[name] = want[name] // a busy machine
				}
			}
		}
		delete(got, "rollbackd_leader")
		if !maps.Equal(got, want) {
			t.Errorf("figures %v, want %v", got, want)
		}
	}
	// given that nobody has looked yet, then nothing is said, and not that nothing is dead
	says(map[string]float64{})
	// given an empty log, then nothing is old
	require.OK(t, g.look(t.Context(), records, func(context.Context, error) {}))
	says(map[string]float64{
		"rollbackd_dead_letters": 0, "rollbackd_oldest_dead_letter_seconds": 0,
		"rollbackd_oldest_open_seconds processing": 0, "rollbackd_oldest_open_seconds failed": 0,
	})
	// given rows of all states
	for i, row := range []struct{ status, minutes int }{{0, 10}, {0, 20}, {1, 999}, {2, 30}, {3, 100}, {3, 200},
		{4, 999}} {
		stack.Exec(t, pool, `INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times,
			consumer_timestamp, created_at)
			VALUES ('g', 't', ?, ?, 1, UTC_TIMESTAMP(6) - INTERVAL ? MINUTE, UTC_TIMESTAMP(6))`, i, row.status, row.minutes)
	}
	require.OK(t, g.look(t.Context(), records, func(context.Context, error) {}))
	says(map[string]float64{
		"rollbackd_dead_letters": 2, "rollbackd_oldest_dead_letter_seconds": 200 * 60,
		"rollbackd_oldest_open_seconds processing": 20 * 60, "rollbackd_oldest_open_seconds failed": 30 * 60,
	})
}

func TestWhatWaitsLongestIsSaidAndNothingOfNothing(t *testing.T) {
	t.Parallel()
	row := func(status dedup.Status, age time.Duration) map[dedup.Status]dedup.Row {
		return map[dedup.Status]dedup.Row{status: {
			Identity: dedup.Identity{Group: "g", Tag: "t", Key: "k"}, Version: dedup.Version{Status: status, Attempts: 5,
				Replays: 2},
			Age: age, Reason: "exhausted",
		}}
	}
	for _, c := range []struct {
		oldest map[dedup.Status]dedup.Row
		want   string
	}{
		{nil, ""},
		{row(dedup.Failed, time.Minute), "level=INFO msg=m failed.age=1m0s failed.tag=t failed.key=k failed.attempts=5 " +
			"failed.replays=2"},
		{row(dedup.Failed, time.Hour), "level=WARN msg=m failed.age=1h0m0s failed.tag=t failed.key=k failed.attempts=5 " +
			"failed.replays=2"},
		{row(dedup.Processing, time.Hour), "level=WARN msg=m processing.age=1h0m0s processing.tag=t processing.key=k " +
			"processing.attempts=5 processing.replays=2"},
		{row(dedup.Dead, time.Second), "level=WARN msg=m dead.age=1s dead.tag=t dead.key=k dead.attempts=5 dead.replays=2 " +
			"dead.reason=exhausted"},
	} {
		var out bytes.Buffer
		m := Maintenance{d: &Operator{o: Options{Retention: time.Minute}}, MaintenanceOptions: MaintenanceOptions{
			Logger: slog.New(slog.NewTextHandler(&out, nil)), Overdue: 3 * time.Minute,
		}}
		m.warn(t.Context(), c.oldest) // of no letter that is older than a minute
		m.sayOldest(t.Context(), c.oldest)
		_, got, _ := strings.Cut(strings.TrimSpace(out.String()), " ")
		assert.Is(t, strings.Replace(got, `"what waits longest in the consumer log"`, "m", 1), c.want, "it is said")
	}
}

// Given a pass of hours, then it is said once an hour while rows go ever later, and not while it makes up for it.
func TestRetentionSaysThatItDoesNotKeepPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		reg := &registry{Registerer: prometheus.NewRegistry()}
		m := &Maintenance{
			MaintenanceOptions: MaintenanceOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))},
			figures:            newFigures(time.Hour, deadletter.CompensateOptions{}, reg),
		}
		tell := m.late(t.Context())
		by := 10 * time.Minute
		tell(by)
		for _, c := range []struct{ more, want int }{{0, 0}, {1, 1}, {-1, 1}, {0, 1}, {1, 2}} {
			for range 60 {
				time.Sleep(time.Minute)
				by += time.Duration(c.more) * time.Second
				tell(by)
			}
			assert.Is(t, strings.Count(out.String(), "does not keep pace"), c.want, "rows were %v late: it was said times", by)
		}
	})
}
