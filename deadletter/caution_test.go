package deadletter_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// What compensation reopened and could not publish is its own to take up again: nobody else would.
func TestCompensationFinishesWhatItBegan(t *testing.T) {
	w := newWorld(t)
	w.deadMany(dedup.ReasonExhausted, 5)
	w.moveBack(time.Hour)
	killed := errors.New("killed")
	w.hook = func(p deadletter.Point) error {
		if p == deadletter.PointReopened {
			return killed
		}
		return nil
	}
	once, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	_ = w.letters().Compensate(once, deadletter.CompensateOptions{After: time.Second, Per: time.Second, Limit: 50})
	cancel()
	w.hook = nil
	w.wantQueues(0, 5)
	w.moveBack(10 * time.Hour) // a long time later
	again, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	_ = w.letters().Compensate(again, deadletter.CompensateOptions{After: time.Second, Per: time.Second, Limit: 50})
	w.wantQueues(5, 0)
}

// conflictOf makes the dead letter of a message whose key another body has, with its row, and the success row of the
// other.
func (w *world) conflictOf(key, body string) (rabbit.Delivery, wire.Identified) {
	w.t.Helper()
	w.inState(key, dedup.Success)
	d := message(key, body)
	id, why := wire.Conflict(w.identify(d), d.Body)
	absent := dedup.Row{Identity: id.Identity, Version: dedup.Version{Status: dedup.Absent}}
	if err := w.records.Dead(w.t.Context(), absent, entry(id, d), dedup.ReasonConflict, why.Error()); err != nil {
		w.t.Fatal(err)
	}
	w.put(d, w.identify(d), wire.CopyOptions{Reason: dedup.ReasonConflict})
	w.moveBack(time.Hour)
	return d, id
}

// The success that a conflict met may be forgotten by now: then the other body would find the key free.
func TestAConflictFromAFileWantsForceWhenTheKeysRowIsGone(t *testing.T) {
	w := newWorld(t)
	w.conflictOf("k", `{"other":1}`)
	var out bytes.Buffer
	if _, err := w.letters().Export(t.Context(), deadletter.Filter{}, &out); err != nil {
		t.Fatal(err)
	}
	w.exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	if res := w.replay(all, deadletter.ReplayOptions{DryRun: true}); len(res.Left) != 1 ||
		res.Left[0].Why != deadletter.WhyKeyTaken {
		t.Fatalf("from the queue: %+v", res)
	}
	res := w.replayFrom(out.String(), deadletter.ReplayOptions{})
	if res.Replayed != 0 {
		t.Errorf("from the file it was published without force: %+v", res)
	}
}

func TestAConflictIsNotRepublishedWhenTheKeysRowIsGone(t *testing.T) {
	w := newWorld(t)
	_, id := w.conflictOf("k", `{"other":1}`)
	w.exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	w.broker.Delete(rabbit.DeadQueue(w.queue))
	w.declare()
	res, err := w.letters().Replay(t.Context(), deadletter.Rows{Rows: []dedup.Row{w.rowOf(id.Identity)}},
		deadletter.ReplayOptions{By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	if res.Replayed != 0 {
		t.Errorf("republished without force: the daemon will find key k free and apply it")
	}
}

// What counts is what was deleted, not what LOG_RETENTION says.
func TestALetterIsTooOldForWhatWasPruned(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	w.put(d, w.identify(d), wire.CopyOptions{
		Attempt: 3, FirstFailedAt: time.Now().Add(-72 * time.Hour), DeadAt: time.Now().Add(-71 * time.Hour),
	})
	w.inState("k", dedup.Success)
	w.moveBack(70 * time.Hour)
	if res := w.replay(all, deadletter.ReplayOptions{DryRun: true}); res.Stale != 1 {
		t.Fatalf("before: %+v", res)
	}
	// log prune --older-than 24h
	if _, err := w.records.Prune(t.Context(), dedup.PruneOptions{Group: group, OlderThan: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	res := w.replay(all, deadletter.ReplayOptions{})
	if res.Replayed != 0 {
		t.Error("a message that had its effect was published again under a new row, without force")
	}
}

func TestCutHeadersAreNeverRepublished(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	d.Headers = rabbit.Table{"x-tenant": strings.Repeat("north", 14_000)}
	id := w.identify(d)
	absent := dedup.Row{Identity: id.Identity, Version: dedup.Version{Status: dedup.Absent}}
	if err := w.records.Dead(t.Context(), absent, entry(id, d), "permanent", "no"); err != nil {
		t.Fatal(err)
	}
	w.moveBack(time.Hour)
	res, err := w.letters().Replay(t.Context(), deadletter.Rows{Rows: []dedup.Row{w.row("k")}},
		deadletter.ReplayOptions{By: "tester"})
	if err != nil {
		t.Fatal(err)
	}
	if res.Replayed != 0 {
		t.Errorf("republished %d; headers of what was sent: %v", res.Replayed, w.get(w.queue))
	}
}

func TestAReplaySaysThatSomebodyElseReads(t *testing.T) {
	w := newWorld(t)
	w.deadMany(dedup.ReasonExhausted, 5)
	conn, err := rabbit.Dial(t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	sub, err := conn.Consume(t.Context(), rabbit.DeadQueue(w.queue), "other", 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.Collect(t.Context(), 5, time.Second, nil); err != nil {
		t.Fatal(err)
	}
	res := w.replay(all, deadletter.ReplayOptions{})
	if res.Others != 1 {
		t.Errorf("no error, and the result is %+v", res)
	}
}

// A letter with another count of replays than its row is one of an earlier opening, and is acked when it is moved by
// hand.
func TestAnAdoptedLetterIsStillItsRowsLetter(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	w.put(d, w.identify(d), wire.CopyOptions{Attempt: 3, Replays: 2})
	_, err := w.letters().Survey(t.Context(), deadletter.SurveyOptions{
		Each: func(deadletter.Surveyed) error { return nil }, Adopt: func(dedup.Identity) bool { return true }, By: "tester",
	})
	if err != nil {
		t.Fatal(err)
	}
	if row := w.row("k"); row.Status != dedup.Dead || row.Replays != 2 {
		t.Errorf("row %v with %d replays, its letter says 2: moved by hand, the daemon acks it as duplicate_of_dead",
			row.Status, row.Replays)
	}
}

func TestAConflictFromAFileTakesNoEffectWithoutForce(t *testing.T) {
	w := newWorld(t)
	_, id := w.conflictOf("k", `{"other":1}`)
	text, _ := w.export()
	w.exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	w.cured()
	res := w.replayFrom(text, deadletter.ReplayOptions{Window: 10})
	if n, _ := w.effects(); n != 0 {
		t.Errorf("%d effects without force; row of the conflict: %v with %d letters left; result %+v", n,
			w.rowOf(id.Identity).Status, w.broker.Depth(rabbit.DeadQueue(w.queue)), res)
	}
	if res := w.replayFrom(text, deadletter.ReplayOptions{Force: true, Window: 10}); res.Replayed+res.Stale != 1 {
		t.Errorf("with force: %+v", res)
	}
	w.wantEffects(1)
	if row := w.rowOf(id.Identity); row.Status != dedup.Discarded {
		t.Errorf("the row of the conflict is %v, want it ended", row.Status)
	}
}
