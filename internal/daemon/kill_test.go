package daemon_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given a daemon that works off a long queue, when it is killed five times in the middle of it and started again each
// time, then every message takes effect once and none is dead-lettered.
//
// The process is frozen first, so that what it had in hand can be counted, and killed while it is frozen: its
// transactions are open, its commits unanswered, its acks unsent. A dead process's locks in Redis live for LOCK_TTL,
// and what it had claimed in the slow path is protected for LEASE; both are short here so that the run is.
func TestKilledFiveTimesNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	messages := sized(20_000, 200_000)
	w := newWorld(t, "BATCH_SIZE", "500", "LOCK_TTL", "1s", "HANDLER_TIMEOUT", "3s", "LEASE", "5s")
	orders := w.open(messages)
	w.publish(shop.Repeat(w.rng, w.route.Rollbacks(orders), .1)...)

	began := time.Now()
	for i, share := range []float64{.10, .22, .34, .46, .58} {
		daemon := w.start()
		applied, held := w.freezeInside(daemon, int(share*float64(messages)))
		if err := daemon.Kill(); err != nil {
			t.Fatal(err)
		}
		left := 100 * float64(messages-applied) / float64(messages)
		t.Logf("%v: kill -9 number %d: %d of %d not yet applied (%.0f %%), %d deliveries in hand",
			time.Since(began).Round(time.Millisecond), i+1, messages-applied, messages, left, held)
		if left < 10 || left > 90 || held == 0 {
			t.Fatalf("kill -9 number %d did not hit the middle of the work", i+1)
		}
	}
	daemon := w.start()
	w.ended(messages, 5*time.Minute)
	t.Logf("%v: all ended", time.Since(began).Round(time.Millisecond))
	w.stop(daemon)
	// No message fails, so a lane claims one at a time, and a kill costs it that one attempt.
	report := w.judge(oracle.Allowance{Attempts: 2})
	if report.Applied != messages || report.DeadLettered != 0 {
		t.Errorf("%d applied and %d dead, want %d and none", report.Applied, report.DeadLettered, messages)
	}
	if lanes, kills := w.config().Lanes, 5; report.AttemptsSpent > lanes*kills {
		t.Errorf("%d attempts were lost to %d kills of %d lanes", report.AttemptsSpent, kills, lanes)
	}
}

// freezeInside leaves the daemon frozen with SIGSTOP when at least atLeast messages are applied and it has deliveries
// in hand. It looks only while the daemon is frozen: however slow this machine is, the daemon gets no further
// meanwhile.
func (w *world) freezeInside(daemon *program.Process, atLeast int) (applied, held int) {
	w.t.Helper()
	w.eventually("the daemon is in the middle of its work", 3*time.Minute, func() bool {
		w.signal(daemon, syscall.SIGSTOP)
		if applied = w.rows(dedup.Success); applied >= atLeast {
			if held, _ = w.unacked(w.config().Queue); held > 0 {
				return true
			}
		}
		w.signal(daemon, syscall.SIGCONT)
		return false
	})
	return applied, held
}

func (w *world) signal(p *program.Process, s syscall.Signal) {
	w.t.Helper()
	if err := p.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}
