package operator

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestWhatWaitsLongestIsSaidAndNothingOfNothing(t *testing.T) {
	t.Parallel()
	row := func(status dedup.Status, age time.Duration) map[dedup.Status]dedup.Row {
		return map[dedup.Status]dedup.Row{status: {Identity: dedup.Identity{Group: "g", Tag: "t", Key: "k"},
			Version: dedup.Version{Status: status, Attempts: 5, Replays: 2}, Age: age, Reason: "exhausted"}}
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
		m := Maintenance{d: &Operator{o: Options{Retention: time.Minute}},
			MaintenanceOptions: MaintenanceOptions{Logger: slog.New(slog.NewTextHandler(&out, nil)), Overdue: 3 * time.Minute}}
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
		m := &Maintenance{MaintenanceOptions: MaintenanceOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))},
			figures: newFigures(time.Hour, deadletter.CompensateOptions{}, reg)}
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
