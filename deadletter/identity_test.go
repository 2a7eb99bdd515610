package deadletter_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// filed makes the letter and the row of a message that is dead under this identity.
func (w *world) filed(d rabbit.Delivery, id wire.Identified, reason dedup.Reason) {
	w.t.Helper()
	w.put(d, id, wire.CopyOptions{Reason: reason})
	row := dedup.Row{Identity: id.Identity, Version: dedup.Version{Status: dedup.Absent}}
	if err := w.records.Dead(w.t.Context(), row, entry(id, d), reason, "see remark"); err != nil {
		w.t.Fatal(err)
	}
	w.moveBack(time.Second)
}

func TestAConflictIsReplayedUnderItsOwnRow(t *testing.T) {
	w := newWorld(t)
	// given a key that is applied with one body, and a letter of another body under it
	w.inState("k", dedup.Success)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.identify(d), d.Body)
	w.filed(d, conflict, dedup.ReasonConflict)
	// when it is chosen by the key that dlq list shows
	res := w.replay(deadletter.Filter{Keys: []string{conflict.Identity.Key}}, deadletter.ReplayOptions{})
	// then the conflict's row is reopened, and the applied one is not touched
	w.wantQueues(1, 0)
	if row := w.rowOf(conflict.Identity); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row of the conflict = %v after %d replays, want failed after 1", row.Status, row.Replays)
	}
	if row := w.row("k"); row.Status != dedup.Success || row.Replays != 0 {
		t.Errorf("row of the key = %v after %d replays, want success, untouched", row.Status, row.Replays)
	}
	if res.ByReason["conflict"] != 1 {
		t.Errorf("by reason: %v, want one conflict", res.ByReason)
	}
}

func TestAConflictWhoseOtherRowIsGoneWantsForce(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.identify(d), d.Body)
	w.filed(d, conflict, dedup.ReasonConflict)
	res := w.replay(all, deadletter.ReplayOptions{})
	w.wantQueues(0, 1)
	if len(res.Left) != 1 || res.Left[0].Why != deadletter.WhyKeyTaken {
		t.Errorf("left %v, want one whose key was taken", res.Left)
	}
	w.replay(all, deadletter.ReplayOptions{Force: true})
	w.wantQueues(1, 0)
	if row := w.row("k"); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row = %v after %d replays, want it reopened under its own key", row.Status, row.Replays)
	}
	w.wantReplacedBy(conflict.Identity, "k")
}

// wantReplacedBy wants the row of a former identity ended in favour of another.
func (w *world) wantReplacedBy(former dedup.Identity, name string) {
	w.t.Helper()
	row := w.rowOf(former)
	if want := "replayed as " + identity(name).String(); row.Status != dedup.Discarded ||
		!strings.Contains(row.Remark, want) {
		w.t.Errorf("former row = %v, %q; want discarded, %q", row.Status, row.Remark, want)
	}
}

func TestALetterOfADiscardedConflictIsStale(t *testing.T) {
	w := newWorld(t)
	d := message("k", `{"other":1}`)
	conflict, _ := wire.Conflict(w.identify(d), d.Body)
	w.put(d, conflict, wire.CopyOptions{Reason: dedup.ReasonConflict})
	if err := w.records.Discard(t.Context(), dedup.Row{Identity: conflict.Identity,
		Version: dedup.Version{Status: dedup.Absent}},
		entry(conflict, d), "ann", "wrong"); err != nil {
		t.Fatal(err)
	}
	if res := w.replay(all, deadletter.ReplayOptions{Force: true}); res.Stale != 1 {
		t.Errorf("%+v; want one stale letter", res)
	}
	w.wantQueues(0, 0)
}

func TestTwoBodiesUnderOneKeyAreTwoMessages(t *testing.T) {
	w := newWorld(t)
	for _, body := range []string{`{"a":1}`, `{"a":2}`} { // neither has a row yet
		d := message("k", body)
		w.put(d, w.identify(d), wire.CopyOptions{})
	}
	res := w.replay(all, deadletter.ReplayOptions{})
	w.wantQueues(2, 0)
	d := message("k", `{"a":2}`)
	conflict, _ := wire.Conflict(w.identify(d), d.Body)
	if res.Replayed != 2 || w.row("k").Replays != 1 || w.rowOf(conflict.Identity).Replays != 1 {
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
			id, err := wire.Identify(group, w.sources, w.queue, d)
			if _, filed := errors.AsType[*wire.FiledError](err); !filed {
				t.Fatalf("the message is identified as %v", id.Identity)
			}
			w.filed(d, id, dedup.ReasonUnidentified)
			// when it is replayed as it was: it stays what it is
			w.replay(all, deadletter.ReplayOptions{DryRun: true})
			// when KEY_FROM is corrected
			w.keyFrom = "json:/order_sn"
			killed := errors.New("killed")
			w.hook = func(p deadletter.Point) error {
				if p == deadletter.PointPublished {
					return killed
				}
				return nil
			}
			if _, err := w.letters().Replay(t.Context(), deadletter.Filter{Tag: wire.TagUnidentified},
				deadletter.ReplayOptions{By: "ann"}); !errors.Is(err, killed) {
				t.Fatal(err)
			}
			w.wantQueues(1, 1)
			if row := w.rowOf(id.Identity); row.Status != dedup.Dead {
				t.Fatalf("the former row is %v before the letter is gone, want dead", row.Status)
			}
			w.hook = nil
			res := w.replay(deadletter.Filter{Tag: wire.TagUnidentified}, deadletter.ReplayOptions{})
			// then its real identity is reopened, and the former row ended
			w.wantQueues(2, 0)
			if row := w.row("k"); row.Status != dedup.Failed || row.Replays != 2 || res.ByReason["unidentified"] != 1 {
				t.Errorf("row = %v after %d replays, by reason %v", row.Status, row.Replays, res.ByReason)
			}
			w.wantReplacedBy(id.Identity, "k")
		})
	}
}

func TestAnUnidentifiedLetterIsReplayedAsWhatItIs(t *testing.T) {
	w := newWorld(t)
	d := rabbit.Delivery{Message: rabbit.Message{Body: []byte("{}"), Type: "rollbackd.forged"}, RoutingKey: tag}
	id := w.identify(d)
	w.filed(d, id, dedup.ReasonUnidentified)
	w.replay(all, deadletter.ReplayOptions{})
	w.wantQueues(1, 0)
	if row := w.rowOf(id.Identity); row.Status != dedup.Failed || row.Replays != 1 {
		t.Errorf("row = %v after %d replays, want failed after 1", row.Status, row.Replays)
	}
}
