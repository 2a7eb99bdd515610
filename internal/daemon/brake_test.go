package daemon_test

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Given a producer that sends 10,000 messages which nobody can read, a hundred times what the brake allows of other
// letters, then all of them are dead-lettered, nothing pauses, and the messages among them are applied.
func TestTenThousandMalformedMessagesDoNotBrake(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "MAX_DEAD_RATE", "100/60s", "BRAKE_PAUSE", "24h")
	const bad, good = 10_000, 100
	var sent []oracle.Sent
	for i := range bad {
		sent = append(sent, oracle.Sent{
			Publishing: w.route.Message("bad-"+itoa(i), []byte("{")), Fate: oracle.ToDie(dedup.ReasonMalformed),
		})
	}
	sent = append(sent, w.route.Rollbacks(w.open(good))...)
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	w.publish(sent...)
	daemon := w.start()
	w.ended(bad+good, 2*time.Minute)
	metrics, err := daemon.Metrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := metrics[`rollbackd_paused{why="max_dead_rate"}`]; !ok || p != 0 {
		t.Errorf("paused by the brake: %v (%v), want not", p, ok)
	}
	w.stop(daemon)
	if dead, applied := w.rows(dedup.Dead), w.rows(dedup.Success); dead != bad || applied != good {
		t.Errorf("%d dead, %d applied; want %d and %d", dead, applied, bad, good)
	}
	w.judge(oracle.Allowance{})
}
