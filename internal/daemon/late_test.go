package daemon_test

import (
	"crypto/sha256"
	"syscall"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// failedOnce leaves rows as a daemon leaves them whose handler blamed these messages an hour ago: their next attempt
// is due, and they share it.
func (w *world) failedOnce(sent []oracle.Sent) {
	w.t.Helper()
	group := w.config().Group
	tx := require.Get(w.db.BeginTx(w.t.Context(), nil))(w.t)
	defer func() { _ = tx.Rollback() }() // over already
	for _, s := range sent {
		hash := sha256.Sum256(s.Body)
		require.Get(tx.ExecContext(w.t.Context(), `INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, msg_body,
			body_hash, consumer_status, consumer_times, owner, consumer_timestamp, created_at) VALUES (?, ?, ?, ?, ?, ?, 2, 1,
			'blame/1', UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))`, group, w.route.Key, s.MessageID, s.MessageID,
			s.Body, hash[:]))(w.t)
	}
	require.OK(w.t, tx.Commit())
}

// fullBatches make every lane begin with a batch that is one full group, however slow the machine is.
var fullBatches = []string{
	config.Prefix + "BATCH_SIZE=200", config.Prefix + "BATCH_LINGER=5s", config.Prefix + "MEMORY_BUDGET=1GiB",
}

// Given a daemon whose lanes all hold a full group of claims, when it is killed, then another one has applied
// everything within a minute, which is less than four leases, and only those claims have cost an attempt, one each.
func TestKilledWithFullGroupsEverythingIsAppliedWithinAMinute(t *testing.T) {
	t.Parallel()
	const messages, claimed = 4 * 400, 4 * 200
	// The lanes share the messages evenly: the first to subscribe would take all it may.
	w := newWorld(t, "LANES", "4", "LEASE", "16s", "HANDLER_TIMEOUT", "8s", "LOCK_TTL", "8s", "BATCH_SIZE", "200",
		"PREFETCH", "400")
	sent := w.route.Rollbacks(w.open(messages))
	w.failedOnce(sent)
	w.publish(sent...)
	hanging := w.child(hangEnv+"=claimed", fullBatches...)
	w.eventually("all lanes hold full groups", func() bool { return w.rows(dedup.Processing) == claimed })
	w.kill(hanging)
	killed := time.Now()
	w.exec("CREATE TABLE at_kill AS SELECT msg_key, consumer_times FROM consumer_log")

	daemon := w.start()
	w.within(time.Minute, "everything is applied", func() bool { return w.rows(dedup.Success) == messages })
	t.Logf("applied %v after the kill", time.Since(killed).Round(time.Millisecond))
	w.ended(messages)
	w.stop(daemon)
	is(w, "messages needed more than one attempt after the kill",
		w.count("SELECT COUNT(*) FROM consumer_log l JOIN at_kill k USING (msg_key) WHERE l.consumer_times <> "+
			"k.consumer_times + 1"), 0)
	assert.Is(t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_times = 3"), claimed,
		"the kill has cost messages an attempt")
	w.judged(messages, 0, oracle.Allowance{Attempts: 3})
}

// Given a daemon whose lanes all hold a full group of claims and wait for somebody's lock on the stock, when it is to
// stop and that lasts longer than it may drain, then nobody has paid an attempt for it.
func TestAStopWithFullGroupsCostsNoAttempt(t *testing.T) {
	t.Parallel()
	const messages, claimed = 4 * 400, 4 * 200 // a lane begins with half of its window
	w := newWorld(t, "LANES", "4", "DRAIN_TIMEOUT", "1s", "BATCH_SIZE", "200", "PREFETCH", "400")
	sent := w.route.Rollbacks(w.open(messages))
	w.failedOnce(sent)
	w.publish(sent...)
	free := w.lockStock()
	waiting := w.startProcess(program.Options{
		Path: program.Shared(t), Args: []string{"run"}, Env: append(w.environ(), fullBatches...), Log: w.logs,
	})
	w.eventually("all lanes hold full groups", func() bool { return w.rows(dedup.Processing) == claimed })
	w.signal(waiting, syscall.SIGTERM)
	w.exits(waiting, 1, time.Minute) // an error: it could not finish
	assert.Is(t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_times <> 1 OR consumer_status <> 2"), 0,
		"the stop has cost messages an attempt, %d are claimed still", w.rows(dedup.Processing))
	free()
	is(w, "attempts beyond the first", w.finish(messages, 0, oracle.Allowance{Attempts: 2}).AttemptsSpent, messages)
}
