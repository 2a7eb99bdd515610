package deadletter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// What compensation reopened and could not publish is its own to take up again: nobody else would.
func TestCompensationFinishesWhatItBegan(t *testing.T) {
	w := newWorld(t)
	w.deadMany(dedup.ReasonExhausted, 5)
	w.MoveBack(time.Hour)
	w.killAt(deadletter.PointReopened)
	_, _, err := w.letters().ReplayDue(t.Context(), deadletter.CompensateOptions{After: time.Second})
	if !errors.Is(err, errKilled) {
		t.Fatalf("it ended with %v, want the kill", err)
	}
	w.hook = nil
	w.WantQueues(0, 5)
	w.MoveBack(10 * time.Hour) // a long time later
	assert.Is(t, w.replayDue(time.Second).Replayed, 5, "w.replayDue(time.Second).Replayed")
	w.WantQueues(5, 0)
}

// conflictOf makes the dead letter of a message whose key another body has, with its row, and the success row of the
// other.
func (w *world) conflictOf(key, body string) wire.Identified {
	w.T.Helper()
	w.inState(key, dedup.Success)
	d := message(key, body)
	id, why := wire.Conflict(w.Identify(d), d.Body)
	w.Must(w.Records.Dead(w.T.Context(), absent(id.Identity), entry(id, d), dedup.ReasonConflict, why.Error()))
	w.put(d, w.Identify(d), wire.CopyOptions{Reason: dedup.ReasonConflict})
	w.MoveBack(time.Hour)
	return id
}

func TestAConflictIsNotRepublishedWhenTheKeysRowIsGone(t *testing.T) {
	w := newWorld(t)
	id := w.conflictOf("k", `{"other":1}`)
	w.Exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	w.Broker.Delete(rabbit.DeadQueue(w.Queue))
	w.Declare()
	rows := deadletter.Rows{Rows: []dedup.Row{w.RowOf(id.Identity)}}
	assert.Is(t, w.replay(rows, deadletter.ReplayOptions{}).Replayed, 0,
		"republished without force: the daemon will find key k free and apply it")
}

// What counts is what was deleted, not what LOG_RETENTION says.
func TestALetterIsTooOldForWhatWasPruned(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	w.put(d, w.Identify(d), wire.CopyOptions{
		Attempt: 3, FirstFailedAt: time.Now().Add(-72 * time.Hour), DeadAt: time.Now().Add(-71 * time.Hour),
	})
	w.inState("k", dedup.Success)
	w.MoveBack(70 * time.Hour)
	require.Is(t, w.replay(all, deadletter.ReplayOptions{DryRun: true}).Stale, 1, "before")
	// log prune --older-than 24h
	require.Get(w.Records.Prune(t.Context(), dedup.PruneOptions{Group: group, OlderThan: 24 * time.Hour}))(w.T)
	res := w.replay(all, deadletter.ReplayOptions{})
	if res.Replayed != 0 {
		t.Error("a message that had its effect was published again under a new row, without force")
	}
}

func TestAReplaySaysThatSomebodyElseReads(t *testing.T) {
	w := newWorld(t)
	w.deadMany(dedup.ReasonExhausted, 5)
	w.Hold(5)
	assert.Is(t, w.replay(all, deadletter.ReplayOptions{}).Others, 1, "no error, and the result")
}

// A letter with another count of replays than its row is one of an earlier opening, and is acked when it is moved by
// hand.
func TestAnAdoptedLetterIsStillItsRowsLetter(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	w.put(d, w.Identify(d), wire.CopyOptions{Attempt: 3, Replays: 2})
	w.survey(deadletter.SurveyOptions{Adopt: func(dedup.Identity) bool { return true }})
	if row := w.Row("k"); row.Status != dedup.Dead || row.Replays != 2 {
		t.Errorf("row %v with %d replays, its letter says 2: moved by hand, the daemon acks it as duplicate_of_dead",
			row.Status, row.Replays)
	}
}

// The success that a conflict met may be forgotten by now: then the other body would find the key free.
func TestAConflictFromAFileTakesNoEffectWithoutForce(t *testing.T) {
	w := newWorld(t)
	id := w.conflictOf("k", `{"other":1}`)
	text, _ := w.export()
	w.Exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	if res := w.replay(all, deadletter.ReplayOptions{DryRun: true}); len(res.Left) != 1 ||
		res.Left[0].Why != deadletter.WhyKeyTaken {
		t.Errorf("from the queue: %+v", res)
	}
	w.cured()
	res := w.replayFrom(text, deadletter.ReplayOptions{Window: 10})
	if n, _ := w.effects(); n != 0 {
		t.Errorf("%d effects without force; row of the conflict: %v with %d letters left; result %+v", n,
			w.RowOf(id.Identity).Status, w.Broker.Depth(rabbit.DeadQueue(w.Queue)), res)
	}
	if res := w.replayFrom(text, deadletter.ReplayOptions{Force: true, Window: 10}); res.Replayed+res.Stale != 1 {
		t.Errorf("with force: %+v", res)
	}
	w.wantEffects(1)
	assert.Is(t, w.RowOf(id.Identity).Status, dedup.Discarded, "the row of the conflict")
}
