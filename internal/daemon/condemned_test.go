package daemon_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

// Given a full dead-letter queue, when the process kills itself with SIGKILL as soon as rows keep the reasons of
// letters that are refused, and what was wrong with their messages is mended behind their backs, then no daemon runs
// them again: after a restart, copies, another kill and room in the queue each has one letter with the reason it had.
func TestAProcessKilledWhenItsLettersAreRefusedRunsNothingAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "LOCK_TTL", "1s", "LEASE", "4s", "HANDLER_TIMEOUT", "2s", "LANES", "2", "BATCH_SIZE", "50",
		"MAX_ATTEMPTS", "3", "RETRY_DELAYS", "100ms,200ms")
	orders := w.open(120)
	good, bad := orders[:100], orders[100:]
	setStatus := func(status int, orderSN string) {
		w.exec("UPDATE stock_reservation SET status = ? WHERE order_sn = ?", status, orderSN)
	}
	var copies []oracle.Sent
	for _, o := range bad {
		setStatus(3, o.SN) // deducted for good
		copies = append(copies, oracle.Sent{
			Publishing: w.route.Message(o.Key(), o.Body()), Fate: oracle.ToDie(dedup.ReasonPermanent),
		})
	}
	sent := append(w.route.Rollbacks(good), copies...)
	w.remember()
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	room := w.fullDeadLetterQueue()
	w.publish(sent...)

	w.exits(w.child(crashEnv+"="+string(consumer.PointCondemned)), killed, time.Minute)
	// given rows that keep their reasons, whose messages would be applied if they ran again
	var mended []string
	for _, o := range bad {
		if w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'permanent' AND msg_key = ?",
			o.Key()) == 1 {
			setStatus(1, o.SN)
			mended = append(mended, o.SN)
		}
	}
	if len(mended) == 0 {
		t.Fatal("it was killed before a row kept its reason")
	}
	first, second := w.start(), w.start()
	w.publish(copies...)
	w.eventually("all rows keep their reasons, and two daemons hold the letters", func() bool {
		return w.heldBy(first)+w.heldBy(second) >= len(bad) && w.rows(dedup.Success) == len(good) &&
			w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 2 AND reason = 'permanent'") == len(bad)
	})
	w.kill(first)
	w.eventually("the other holds what the killed one held", func() bool {
		return w.heldBy(second) >= len(bad)
	})
	room()
	w.ended(len(orders))
	w.stop(second)
	for _, sn := range mended {
		setStatus(3, sn)
	}
	w.judged(len(good), len(bad), oracle.Allowance{}) // and each for the reason that was written down
	assert.Is(t, w.broker.Depth(rabbit.DeadQueue(w.config().Queue)), len(bad), "letters messages")
	if n := w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND consumer_times > 1"); n != 0 {
		// What was in the hands of the killed ones twice is claimed alone, and that attempt counts.
		t.Errorf("%d dead ones had more than one attempt", n)
	}
}

// heldBy is how many deliveries a daemon holds; 0 when it does not say.
func (w *world) heldBy(daemon *program.Process) int {
	w.t.Helper()
	metrics, err := daemon.Metrics(w.t.Context())
	if err != nil {
		return 0
	}
	return int(metrics["rollbackd_held_deliveries"])
}

// fullDeadLetterQueue makes the dead-letter queue refuse everything; room empties it of what fills it, and lets all in.
func (w *world) fullDeadLetterQueue() (room func()) {
	w.t.Helper()
	queue := rabbit.DeadQueue(w.config().Queue)
	w.broker.Policy("full", queue, map[string]any{"max-length": 1, "overflow": "reject-publish"})
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	defer func() { _ = p.Close(context.WithoutCancel(w.t.Context())) }()
	filler := rabbit.Publishing{Key: queue, Message: rabbit.Message{MessageID: "filler"}}
	w.eventually("the dead-letter queue is full", func() bool {
		return errors.Is(p.Publish(w.t.Context(), []rabbit.Publishing{filler})[0], rabbit.ErrNacked)
	})
	return func() {
		w.broker.Purge(queue)
		w.broker.Policy("full", queue, nil)
	}
}
