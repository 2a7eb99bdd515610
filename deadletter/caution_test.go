package deadletter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// What compensation reopened and could not publish is its own to take up again: nobody else would.
func TestCompensationFinishesWhatItBegan(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 5)
	w.MoveBack(time.Hour)
	w.killAt(deadletter.PointReopened)
	_, _, err := w.letters().ReplayDue(t.Context(), deadletter.CompensateOptions{After: time.Second})
	assert.Error(t, err, errKilled, "it ended")
	w.hook = nil
	w.WantQueues(0, 5)
	w.MoveBack(10 * time.Hour) // a long time later
	assert.Is(t, w.replayDue(time.Second).Replayed, 5, "w.replayDue(time.Second).Replayed")
	w.WantQueues(5, 0)
}

// conflictOf makes the dead letter of a message whose key another body has, with its row, and the success row of the
// other.
func (w *world) conflictOf(key, body string) dedup.Identity {
	w.T.Helper()
	w.inState(key, dedup.Success)
	d, id := w.conflict(key, body)
	w.Must(w.Records.Dead(w.T.Context(), absent(id.Identity), entry(id, d), dedup.ReasonConflict, "see remark"))
	w.put(d, w.Identify(d), wire.CopyOptions{Reason: dedup.ReasonConflict})
	w.MoveBack(time.Hour)
	return id.Identity
}

// What counts is what was deleted, not what LOG_RETENTION says.
func TestALetterIsTooOldForWhatWasPruned(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	failed := time.Now().Add(-72 * time.Hour)
	w.put(d, w.Identify(d), wire.CopyOptions{Attempt: 3, FirstFailedAt: failed, DeadAt: failed.Add(time.Hour)})
	w.inState("k", dedup.Success)
	w.MoveBack(70 * time.Hour)
	require.Is(t, w.replay(all, dry).Stale, 1, "before")
	// log prune --older-than 24h
	require.Get(w.Records.Prune(t.Context(), dedup.PruneOptions{Group: group, OlderThan: 24 * time.Hour}))(w.T)
	assert.Is(t, w.replay(all, plain).Replayed, 0,
		"a message that had its effect is published again under a new row, without force")
}

func TestAReplaySaysThatSomebodyElseReads(t *testing.T) {
	w := newWorld(t).deadMany(dedup.ReasonExhausted, 5)
	w.Hold(5)
	assert.Is(t, w.replay(all, plain).Others, 1, "no error, and the result")
}

// A letter with another count of replays than its row is one of an earlier opening, and is acked when it is moved by
// hand.
func TestAnAdoptedLetterIsStillItsRowsLetter(t *testing.T) {
	w := newWorld(t)
	d := message("k", "{}")
	w.put(d, w.Identify(d), wire.CopyOptions{Attempt: 3, Replays: 2})
	w.survey(deadletter.SurveyOptions{Adopt: func(dedup.Identity) bool { return true }})
	w.wantRow(identity("k"), dedup.Dead, 2) // else the letter, moved by hand, is acked as duplicate_of_dead
}

// The success that a conflict met may be forgotten by now: then the other body would find the key free.
func TestAConflictFromAFileTakesNoEffectWithoutForce(t *testing.T) {
	w := newWorld(t)
	id := w.conflictOf("k", `{"other":1}`)
	text, _ := w.export()
	w.Exec("DELETE FROM consumer_log WHERE consumer_status = 1") // its retention is over
	w.replay(all, dry, "left 1, key_taken")
	w.replay(deadletter.Rows{Rows: []dedup.Row{w.RowOf(id)}}, plain, "left 1, key_taken")
	w.cured()
	res := w.replayFrom(text, deadletter.ReplayOptions{Window: 10})
	n, _ := w.effects()
	assert.Is(t, n, 0, "without force, as of %+v, effects", res)
	res = w.replayFrom(text, deadletter.ReplayOptions{Force: true, Window: 10})
	assert.Is(t, res.Replayed+res.Stale, 1, "with force: %+v", res)
	w.wantEffects(1)
	assert.Is(t, w.RowOf(id).Status, dedup.Discarded, "the row of the conflict")
}

func TestALetterReplayedAsOftenAsAllowedIsParkedAndMarkedOnce(t *testing.T) {
	w := newWorld(t)
	w.most = 2
	w.dead(dedup.ReasonExhausted, "often", "once")
	w.Exec("UPDATE consumer_log SET replays = IF(msg_key = 'often', 2, 1)")
	w.replay(all, dry, "replayed 1, parked 1, left 1, parked")
	assert.Is(t, w.Row("often").Remark, "no", "a dry run wrote the remark")
	w.replay(all, plain, "replayed 1, parked 1, left 1, parked")
	w.replay(all, plain, "parked 1, left 1, parked")
	w.WantQueues(1, 1)
	w.wantRow(identity("often"), dedup.Dead, 2)
	assert.Is(t, w.Row("often").Remark, "parked after 2 replays of at most 2: no", "remark")
	if e := w.events(identity("often")); len(e) != 2 || e[1].To != dedup.Dead || e[1].By != "tester" ||
		!strings.HasPrefix(e[1].Error, "parked") {
		t.Errorf("events = %+v; want one more, the parking", e)
	}
	page, _, err := w.letters().List(t.Context(), deadletter.Filter{}, "")
	if err != nil || len(page) != 1 || !page[0].Parked {
		t.Errorf("List = %+v, %v; want it parked", page, err)
	}
}

func TestAKeyThatNoLetterHasIsReported(t *testing.T) {
	w := newWorld(t).dead(dedup.ReasonExhausted, "a", "b")
	wants := func(f deadletter.Filter, missing ...string) {
		t.Helper()
		assert.Equal(t, w.replay(f, dry).NotFound, missing, "%+v: not found", f)
	}
	wants(byKeys("a", "b"))
	wants(byKeys("nope", "nay"), "nay", "nope")
	wants(byKeys("a", "nope"), "nope")
	wants(deadletter.Filter{Keys: []string{"a"}, Reasons: []dedup.Reason{"permanent"}}, "a")
}
