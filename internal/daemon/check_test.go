package daemon_test

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Given the built-in handler, and one of SQL statements, when a daemon with a check gives the stock of many orders back
// in several lanes, then it warns of nothing.
func TestACheckIsSilentOfTheProjectsOwnHandlers(t *testing.T) {
	t.Parallel()
	for name, pairs := range onStock(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, append(pairs, "CHECK", "on", "LANES", "4", "BATCH_SIZE", "20", "PREFETCH", "40")...)
			orders := w.open(300)
			daemon := w.start()
			w.mixed(w.route.Rollbacks(orders))
			w.ended(len(orders))
			w.stop(daemon)
			w.judge(oracle.Allowance{})
			for line := range strings.Lines(w.logs.String()) {
				if strings.Contains(line, `"check: `) && !strings.Contains(line, "sent nothing for long") {
					t.Error(line) // a busy machine may stop a process for as long as a handler must not idle
				}
			}
		})
	}
}
