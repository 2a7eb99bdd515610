package daemon_test

import (
	"context"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Given a message that kills whatever process handles it, among more innocents than prefetch holds, when a supervisor
// starts the daemon again each time, then after at most MAX_ATTEMPTS + 2 crashes the message is a dead letter with
// reason crashed, and every innocent is applied.
func TestPoisonThatKillsTheProcessDiesAlone(t *testing.T) {
	t.Parallel()
	const attempts, lanes, prefetch = 3, 2, 200
	w := newWorld(t, "MAX_ATTEMPTS", itoa(attempts), "RETRY_DELAYS", "200ms,400ms", "LANES", itoa(lanes), "BATCH_SIZE",
		"100",
		"PREFETCH", itoa(prefetch), "HANDLER_TIMEOUT", "2s", "LEASE", "4s", "LOCK_TTL", "1s")
	orders := w.open(3 * lanes * prefetch)
	poison := orders[lanes*prefetch/2]
	var sent []oracle.Sent
	for _, o := range orders {
		s := w.route.Rollback(o)
		if o.SN == poison.SN {
			s.Fate = oracle.ToDie(dedup.ReasonCrashed)
		}
		sent = append(sent, s)
	}
	w.publish(sent...)

	daemon := w.child(childEnv + "=" + poison.Key())
	crashes := 0
	w.eventually("all messages ended", func() bool {
		select {
		case <-daemon.Exited():
			if code, _ := daemon.Wait(context.Background()); code != crashCode {
				t.Fatalf("the daemon exited with %d, want %d, the code of the poison", code, crashCode)
			}
			crashes++
			t.Logf("crash %d: %d of %d applied", crashes, w.rows(dedup.Success), len(orders))
			daemon = w.child(childEnv + "=" + poison.Key())
		default:
		}
		return w.rows(dedup.Success)+w.rows(dedup.Dead) == len(orders)
	})
	w.ended(len(orders))
	w.stop(daemon)
	if crashes < attempts || crashes > attempts+2 {
		t.Errorf("%d crashes, want %d to %d", crashes, attempts, attempts+2)
	}
	// The first claim of the poison shares its process with one claim of each other lane: these may lose an attempt, once.
	report := w.judged(len(orders)-1, 1, oracle.Allowance{Attempts: 2})
	assert.AtMost(t, report.AttemptsSpent, lanes-1, "the crashes cost innocents attempts, at most were to be expected")
}
