package deadletter_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// filed makes the letter and the row of a message that is dead under this identity.
func (w *world) filed(d rabbit.Delivery, id wire.Identified, reason dedup.Reason) {
	w.T.Helper()
	w.put(d, id, wire.CopyOptions{Reason: reason})
	w.Must(w.Records.Dead(w.T.Context(), absent(id.Identity), entry(id, d), reason, "see remark"))
	w.MoveBack(time.Second)
}

// Given letters of other bodies under keys, of which one is applied, one is forgotten, and one was discarded as a
// conflict, then the first is reopened as the conflict that it is, the second by force and under its own key, and the
// third is stale.
func TestAConflictIsReplayedAsWhatItIs(t *testing.T) {
	w := newWorld(t)
	w.inState("applied", dedup.Success)
	d, conflict := w.conflict("applied", `{"other":1}`)
	w.filed(d, conflict, dedup.ReasonConflict)
	d, forgotten := w.conflict("forgotten", `{"other":1}`)
	w.filed(d, forgotten, dedup.ReasonConflict)
	d, discarded := w.conflict("discarded", `{"other":1}`)
	w.put(d, discarded, wire.CopyOptions{Reason: dedup.ReasonConflict})
	w.Must(w.Records.Discard(t.Context(), absent(discarded.Identity), entry(discarded, d), "ann", "wrong"))
	// when the first is chosen by the key that dlq list shows
	res := w.replay(byKeys(conflict.Identity.Key), plain, "replayed 1, not selected 2")
	assert.Is(t, res.ByReason["conflict"], 1, "by reason: %v", res.ByReason)
	w.WantQueues(1, 2)
	w.wantRow(conflict.Identity, dedup.Failed, 1)
	w.wantRow(identity("applied"), dedup.Success, 0)
	w.replay(byKeys(forgotten.Identity.Key), plain, "not selected 1, left 1, key_taken")
	w.replay(all, force, "replayed 1, stale 1")
	w.WantQueues(2, 0)
	w.wantRow(identity("forgotten"), dedup.Failed, 1)
	w.wantReplacedBy(forgotten.Identity, "forgotten")
}

// wantReplacedBy wants the row of a former identity ended in favour of another.
func (w *world) wantReplacedBy(former dedup.Identity, name string) {
	w.T.Helper()
	row := w.RowOf(former)
	want := "replayed as " + identity(name).String()
	assert.That(w.T, row.Status == dedup.Discarded && strings.Contains(row.Remark, want),
		"former row = %v, %q; want discarded, %q", row.Status, row.Remark, want)
}

// Given letters in whose place an edited message was sent, of an ordinary message, of a conflict whose other row is
// gone, and of one whose tag and key leave the row no room for the name of what was sent, when a replay takes what was
// discarded, by force, too, then they are stale: else both messages would run.
func TestALetterThatWasEditedIsNeverReplayed(t *testing.T) {
	long := strings.Repeat("\u00ad", 120) // which is written in six characters each
	for name, key := range map[string]string{"ordinary": "k", "conflict": "k", "long": long} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := message(key, `{"other":1}`)
			d.Type = map[bool]string{true: strings.Repeat("\u00ad", 50), false: d.Type}[name == "long"]
			id, reason := w.Identify(d), dedup.ReasonExhausted
			if name == "conflict" {
				id, _ = wire.Conflict(id, d.Body)
				reason = dedup.ReasonConflict
			}
			w.put(d, id, wire.CopyOptions{Reason: reason})
			w.Must(w.Records.Discard(t.Context(), absent(id.Identity), entry(id, d), strings.Repeat("a", 150),
				deadletter.SentAnew(id.Identity.Tag, key+"/edited-1")))
			w.MoveBack(time.Second)
			w.replay(all, deadletter.ReplayOptions{Force: true, Discarded: true}, "stale 1")
			w.WantQueues(0, 0)
		})
	}
}

// Given letters of two bodies under one key, neither of which has a row yet, and one that nobody can identify, then
// they are three messages.
func TestEachLetterIsReplayedAsItsOwnMessage(t *testing.T) {
	w := newWorld(t)
	unnamed := rabbit.Delivery{Message: rabbit.Message{Body: []byte("{}"), Type: "rollbackd.forged"}, RoutingKey: tag}
	id := w.Identify(unnamed)
	w.filed(unnamed, id, dedup.ReasonUnidentified)
	for _, body := range []string{`{"a":1}`, `{"a":2}`} {
		d := message("k", body)
		w.put(d, w.Identify(d), wire.CopyOptions{})
	}
	w.replay(all, plain, "replayed 3")
	w.WantQueues(3, 0)
	w.wantRow(id.Identity, dedup.Failed, 1)
	w.wantRow(identity("k"), dedup.Failed, 1)
	_, second := w.conflict("k", `{"a":2}`)
	w.wantRow(second.Identity, dedup.Failed, 1)
}

func TestACorrectedKeyFromGivesALetterItsIdentity(t *testing.T) {
	for name, m := range map[string]rabbit.Message{
		"a header that is no text": {Headers: rabbit.Table{"x-message-key": true}},
		"an empty message id":      {MessageID: "a\x01b"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m.Body = []byte(`{"order_sn":"k"}`)
			d := rabbit.Delivery{Message: m, RoutingKey: tag}
			id := w.Identify(d)
			w.filed(d, id, dedup.ReasonUnidentified)
			// when it is replayed as it was: it stays what it is
			w.replay(all, dry)
			// when KEY_FROM is corrected
			w.keyFrom = "json:/order_sn"
			unidentified := deadletter.Filter{Tag: wire.TagUnidentified}
			w.killedAt(deadletter.PointPublished, unidentified)
			w.WantQueues(1, 1)
			require.Is(t, w.RowOf(id.Identity).Status, dedup.Dead, "the former row before the letter is gone")
			res := w.replay(unidentified, plain, "replayed 1")
			// then its real identity is reopened, and the former row ended
			w.WantQueues(2, 0)
			w.wantRow(identity("k"), dedup.Failed, 2)
			assert.Is(t, res.ByReason["unidentified"], 1, "by reason")
			w.wantReplacedBy(id.Identity, "k")
		})
	}
}
