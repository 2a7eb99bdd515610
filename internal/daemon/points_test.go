package daemon_test

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// Given ten daemons on one queue, when every message is published five times, then every one takes effect once and all
// other copies are absorbed.
func TestTenDaemonsAndFiveCopiesOfEverything(t *testing.T) {
	t.Parallel()
	messages := sized(400, 20_000)
	w := newWorld(t, "LANES", "2", "BATCH_SIZE", "100")
	orders := w.open(messages)
	var sent []oracle.Sent
	for range 5 {
		sent = append(sent, w.route.Rollbacks(orders)...)
	}
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	var all []*program.Process
	for range 10 {
		all = append(all, w.start())
	}
	w.publish(sent...)
	w.ended(messages)
	w.stop(all...)
	is(w, "copies absorbed", w.judged(messages, 0, oracle.Allowance{}).DuplicatesAbsorbed, 4*messages)
}
