package deadletter_test

import (
	"errors"
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
	row := absent(id.Identity)
	w.Must(w.Records.Dead(w.T.Context(), row, entry(id, d), reason, "see remark"))
	w.MoveBack(time.Second)
}

func TestAConflictIsReplayedUnderItsOwnRow(t *testing.T) {
	w := newWorld(t)
	// given a key that is applied with one body, and a letter of another body under it
	w.inState("k", dedup.Success)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.Identify(d), d.Body)
	w.filed(d, conflict, dedup.ReasonConflict)
	// when it is chosen by the key that dlq list shows
	res := w.replay(deadletter.Filter{Keys: []string{conflict.Identity.Key}}, deadletter.ReplayOptions{})
	// then the conflict's row is reopened, and the applied one is not touched
	w.WantQueues(1, 0)
	if row := w.RowOf(conflict.Identity); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row of the conflict = %v after %d replays, want failed after 1", row.Status, row.Replays)
	}
	if row := w.Row("k"); row.Status != dedup.Success || row.Replays != 0 {
		t.Errorf("row of the key = %v after %d replays, want success, untouched", row.Status, row.Replays)
	}
	assert.Is(t, res.ByReason["conflict"], 1, "by reason: %v", res.ByReason)
}

func TestAConflictWhoseOtherRowIsGoneWantsForce(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.Identify(d), d.Body)
	w.filed(d, conflict, dedup.ReasonConflict)
	res := w.replay(all, deadletter.ReplayOptions{})
	w.WantQueues(0, 1)
	if len(res.Left) != 1 || res.Left[0].Why != deadletter.WhyKeyTaken {
		t.Errorf("left %v, want one whose key was taken", res.Left)
	}
	w.replay(all, deadletter.ReplayOptions{Force: true})
	w.WantQueues(1, 0)
	if row := w.Row("k"); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row = %v after %d replays, want it reopened under its own key", row.Status, row.Replays)
	}
	w.wantReplacedBy(conflict.Identity, "k")
}

// wantReplacedBy wants the row of a former identity ended in favour of another.
func (w *world) wantReplacedBy(former dedup.Identity, name string) {
	w.T.Helper()
	row := w.RowOf(former)
	if want := "replayed as " + identity(name).String(); row.Status != dedup.Discarded ||
		!strings.Contains(row.Remark, want) {
		w.T.Errorf("former row = %v, %q; want discarded, %q", row.Status, row.Remark, want)
	}
}

func TestALetterOfADiscardedConflictIsStale(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.Identify(d), d.Body)
	w.put(d, conflict, wire.CopyOptions{Reason: dedup.ReasonConflict})
	w.Must(w.Records.Discard(t.Context(), absent(conflict.Identity),
		entry(conflict, d), "ann", "wrong"))
	if res := w.replay(all, deadletter.ReplayOptions{Force: true}); res.Stale != 1 {
		t.Errorf("%+v; want one stale letter", res)
	}
	w.WantQueues(0, 0)
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
			res := w.replay(all, deadletter.ReplayOptions{Force: true, Discarded: true})
			if res.Stale != 1 {
				t.Errorf("%+v; want one stale letter", res)
			}
			w.WantQueues(0, 0)
		})
	}
}

func TestTwoBodiesUnderOneKeyAreTwoMessages(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{`{"a":1}`, `{"a":2}`} { // neither has a row yet
		d := message("k", body)
		w.put(d, w.Identify(d), wire.CopyOptions{})
	}
	res := w.replay(all, deadletter.ReplayOptions{})
	w.WantQueues(2, 0)
	d := message("k", `{"a":2}`)
	conflict, _ := wire.Conflict(w.Identify(d), d.Body)
	if res.Replayed != 2 || w.Row("k").Replays != 1 || w.RowOf(conflict.Identity).Replays != 1 {
		t.Errorf("%+v; want the first under the key and the second under its conflict", res)
	}
}

func TestACorrectedKeyFromGivesALetterItsIdentity(t *testing.T) {
	for name, d := range map[string]rabbit.Delivery{
		"a header that is no text": {
			Message:    rabbit.Message{Body: []byte(`{"order_sn":"k"}`), Headers: rabbit.Table{"x-message-key": true}},
			RoutingKey: tag,
		},
		"an empty message id": {
			Message: rabbit.Message{Body: []byte(`{"order_sn":"k"}`), MessageID: "a\x01b"}, RoutingKey: tag,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			id := w.Identify(d)
			w.filed(d, id, dedup.ReasonUnidentified)
			// when it is replayed as it was: it stays what it is
			w.replay(all, deadletter.ReplayOptions{DryRun: true})
			// when KEY_FROM is corrected
			w.keyFrom = "json:/order_sn"
			w.killAt(deadletter.PointPublished)
			if _, err := w.letters().Replay(t.Context(), deadletter.Filter{Tag: wire.TagUnidentified},
				deadletter.ReplayOptions{By: "ann"}); !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			w.WantQueues(1, 1)
			require.Is(t, w.RowOf(id.Identity).Status, dedup.Dead, "the former row before the letter is gone")
			w.hook = nil
			res := w.replay(deadletter.Filter{Tag: wire.TagUnidentified}, deadletter.ReplayOptions{})
			// then its real identity is reopened, and the former row ended
			w.WantQueues(2, 0)
			if row := w.Row("k"); row.Status != dedup.Failed || row.Replays != 2 || res.ByReason["unidentified"] != 1 {
				t.Errorf("row = %v after %d replays, by reason %v", row.Status, row.Replays, res.ByReason)
			}
			w.wantReplacedBy(id.Identity, "k")
		})
	}
}

func TestAnUnidentifiedLetterIsReplayedAsWhatItIs(t *testing.T) {
	w := newWorld(t)
	d := rabbit.Delivery{Message: rabbit.Message{Body: []byte("{}"), Type: "rollbackd.forged"}, RoutingKey: tag}
	id := w.Identify(d)
	w.filed(d, id, dedup.ReasonUnidentified)
	w.replay(all, deadletter.ReplayOptions{})
	w.WantQueues(1, 0)
	if row := w.RowOf(id.Identity); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row = %v after %d replays, want failed after 1", row.Status, row.Replays)
	}
}
