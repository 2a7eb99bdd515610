package daemon_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/daemon"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

// childEnv, set to a key, makes this test binary a daemon that dies whenever its handler gets a message with that key.
const childEnv = "ROLLBACKD_TEST_POISON"

// hangEnv, set to a point of a message's life, makes this test binary a daemon whose lanes stand still there.
const hangEnv = "ROLLBACKD_TEST_HANG_AT"

// crashCode is the exit code of such a death.
const crashCode = 66

// poisonedHandler rolls back like the daemon's own, but the message with the key poison kills the process.
type poisonedHandler struct{ poison string }

// Handle is a [consumer.Handler]'s.
func (h poisonedHandler) Handle(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	requests := make([]stock.Request, len(msgs))
	for i, m := range msgs {
		if m.Key == h.poison {
			os.Exit(crashCode)
		}
		var body struct {
			OrderSN string `json:"order_sn"`
		}
		if err := json.Unmarshal(m.Body, &body); err != nil {
			return fmt.Errorf("the test sent what it cannot read: %w", err)
		}
		requests[i] = stock.Request{OrderSN: body.OrderSN, Tag: m.Tag, Key: m.Key}
	}
	return stock.Rollback(ctx, tx, requests, stock.Options{})
}

// runChild is main of the child process.
func runChild(o daemon.Options) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	cfg, _, err := config.Load(os.Environ())
	if err != nil {
		log.Error("configuration", "err", err)
		return 2
	}
	d, err := daemon.New(ctx, cfg, log, o)
	if err == nil {
		err = d.Run(ctx)
	}
	if err != nil {
		log.Error("run", "err", err)
		return 1
	}
	return 0
}

// Given a message that kills whatever process handles it, among more innocents than prefetch holds, when a supervisor
// starts the daemon again each time, then after at most MAX_ATTEMPTS + 2 crashes the message is a dead letter with
// reason crashed, and every innocent is applied.
func TestPoisonThatKillsTheProcessDiesAlone(t *testing.T) {
	const attempts, lanes, prefetch = 3, 2, 200
	w := newWorld(t, "MAX_ATTEMPTS", fmt.Sprint(attempts), "RETRY_DELAYS", "200ms,400ms", "LANES", fmt.Sprint(lanes),
		"BATCH_SIZE", "100", "PREFETCH", fmt.Sprint(prefetch), "HANDLER_TIMEOUT", "2s", "LEASE", "4s", "LOCK_TTL", "1s")
	orders := w.open(3 * lanes * prefetch)
	poison := orders[lanes*prefetch/2]
	sent := w.route.Rollbacks(orders)
	sent[lanes*prefetch/2].Fate = oracle.ToDie(dedup.ReasonCrashed)
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

// failedOnce leaves rows as a daemon leaves them whose handler blamed these messages an hour ago: their next attempt
// is due, and they share it.
func (w *world) failedOnce(sent []oracle.Sent) {
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

// fullGroups are messages that have failed once, and wait for four lanes, so that each begins with half of its window.
func fullGroups(t *testing.T, pairs ...string) *world {
	w := newWorld(t, append([]string{"LANES", "4", "BATCH_SIZE", "200", "PREFETCH", "400"}, pairs...)...)
	sent := w.route.Rollbacks(w.open(inGroups))
	w.failedOnce(sent)
	w.publish(sent...)
	return w
}

const inGroups, claimed = 4 * 400, 4 * 200

// fullBatches make every lane begin with a batch that is one full group, however slow the machine is.
var fullBatches = []string{
	config.Prefix + "BATCH_SIZE=200", config.Prefix + "BATCH_LINGER=5s", config.Prefix + "MEMORY_BUDGET=1GiB",
}

// Given a daemon whose lanes all hold a full group of claims, when it is killed, then another one has applied
// everything within a minute, which is less than four leases, and only those claims have cost an attempt, one each.
func TestKilledWithFullGroupsEverythingIsAppliedWithinAMinute(t *testing.T) {
	w := fullGroups(t, "LEASE", "16s", "HANDLER_TIMEOUT", "8s", "LOCK_TTL", "8s")
	hanging := w.child(hangEnv+"=claimed", fullBatches...)
	w.eventually("all lanes hold full groups", func() bool { return w.rows(dedup.Processing) == claimed })
	w.kill(hanging)
	killed := time.Now()
	w.exec("CREATE TABLE at_kill AS SELECT msg_key, consumer_times FROM consumer_log")

	daemon := w.start()
	w.within(time.Minute, "everything is applied", func() bool { return w.rows(dedup.Success) == inGroups })
	t.Logf("applied %v after the kill", time.Since(killed).Round(time.Millisecond))
	w.ended(inGroups)
	w.stop(daemon)
	is(w, "messages needed more than one attempt after the kill",
		w.count("SELECT COUNT(*) FROM consumer_log l JOIN at_kill k USING (msg_key) WHERE l.consumer_times <> "+
			"k.consumer_times + 1"), 0)
	assert.Is(t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_times = 3"), claimed,
		"the kill has cost messages an attempt")
	w.judged(inGroups, 0, oracle.Allowance{Attempts: 3})
}

// Given a daemon whose lanes all hold a full group of claims and wait for somebody's lock on the stock, when it is to
// stop and that lasts longer than it may drain, then nobody has paid an attempt for it.
func TestAStopWithFullGroupsCostsNoAttempt(t *testing.T) {
	w := fullGroups(t, "DRAIN_TIMEOUT", "1s")
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
	is(w, "attempts beyond the first", w.finish(inGroups, 0, oracle.Allowance{Attempts: 2}).AttemptsSpent, inGroups)
}
