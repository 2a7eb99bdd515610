package consumer

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/lock"
)

// healthOf is the health of an engine that is not there.
func healthOf(log *slog.Logger) *health {
	reg := newRegistry(Config{Registerer: prometheus.NewRegistry()})
	return newHealth(log, newMetrics(reg, &locks{Locker: lock.None{}}, "q", false), time.Second, time.Second)
}

// Given each dependency away for five minutes and asked for all the time, then the log has a line at the beginning with
// what to do, one a minute, and one at the end; a person's pause, which is none, has the first and the last.
func TestADependencyThatIsAwayIsALineAMinute(t *testing.T) {
	for what, want := range map[string]int{
		DependencyRabbitMQ: 4, DependencyMySQL: 4, DependencyRedis: 4, DependencyLock: 4, DependencyService: 4,
		PausedByPerson: 0,
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				h := healthOf(slog.New(slog.NewTextHandler(&out, nil)))
				for range 500 {
					h.missing(t.Context(), what, errors.New("refused"))
					time.Sleep(600 * time.Millisecond) // of the bubble: it takes no time
				}
				h.back(t.Context(), what)
				said := out.String()
				first, _, _ := strings.Cut(said, "\n")
				if strings.Count(said, "still waiting for "+what) != want || strings.Count(said, "\n") != want+2 ||
					!strings.Contains(said, what+" is back") || strings.Contains(first, "do=") != (want > 0) {
					t.Errorf("the log has, want a line with what to do, %d that it still is so, and the end:\n%s", want, said)
				}
			})
		})
	}
}
