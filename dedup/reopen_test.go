package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// deadRow makes a dead row of a key.
func (w *world) deadRow(k Identity) Row {
	w.t.Helper()
	wantError(w.t, "dead", w.log.Dead(w.t.Context(), absent(k), entryOf(k), "permanent", "no such order"), nil)
	return w.read(k)
}

func TestAMendedBodyTakesTheRowAndEndsItsFormerIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	row := w.deadRow(k)
	mended := entryOf(k)
	mended.Body, mended.Properties, mended.MessageID = []byte(`{"mended":1}`), []byte(`{"type":"x"}`), "other"
	mended.BodyHash = sha256.Sum256(mended.Body)
	former := Entry{Identity: Identity{k.Group, "rollbackd.conflict", "sha256:1"}, Body: row.Body}
	former.BodyHash = sha256.Sum256(row.Body)

	left, err := w.log.Reopen(t.Context(), row, mended, ReplayNote{By: "ann", Filter: "file", Token: "t", Mended: &former})

	wantError(t, "reopen", err, nil)
	got := w.read(k)
	wantVersion(t, got, Version{Failed, 0, 1, "t"})
	if string(got.Body) != `{"mended":1}` || string(got.Properties) != `{"type":"x"}` || got.MessageID != "other" ||
		string(got.BodyHash) != string(mended.BodyHash[:]) || string(left.BodyHash) != string(got.BodyHash) {
		t.Errorf("row = %+v, returned hash %x; want all of the mended message", got, left.BodyHash)
	}
	events := w.events(k)
	if want := "body sha256 " + hex.EncodeToString(row.BodyHash) + " mended to " + hex.EncodeToString(mended.BodyHash[:]) +
		": replayed file"; events[len(events)-1].Error != want {
		t.Errorf("event %q, want %q", events[len(events)-1].Error, want)
	}
	ended := w.read(former.Identity)
	if ended.Status != Discarded || !strings.Contains(ended.Remark, "was mended by ann") ||
		string(ended.Body) != string(row.Body) {
		t.Errorf("former identity: %v, %q", ended.Status, ended.Remark)
	}
	// and again, although the former identity has its row by now
	back := entryOf(k)
	back.Body, back.BodyHash = row.Body, former.BodyHash
	_, err = w.log.Reopen(t.Context(), got, back, ReplayNote{By: "ann", Token: "t2", Mended: &former})
	wantError(t, "mended back", err, nil)
	if got := w.read(former.Identity); got.Version != ended.Version {
		t.Errorf("the former identity moved to %v", got.Version)
	}
}

func TestALostMendChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := key("k")
	row := w.deadRow(k)
	_, err := w.log.Reopen(t.Context(), row, entryOf(k), ReplayNote{Token: "first"})
	wantError(t, "reopen", err, nil)
	mended := entryOf(k)
	mended.Body = []byte("x")
	former := Entry{Identity: Identity{k.Group, "rollbackd.conflict", "sha256:1"}}
	_, err = w.log.Reopen(t.Context(), row, mended, ReplayNote{Token: "t", Mended: &former})
	if !errors.Is(err, ErrLost) || string(w.read(k).Body) == "x" || w.read(former.Identity).Status != Absent {
		t.Errorf("%v, body %q, former identity %v; want nothing changed", err, w.read(k).Body, w.read(former.Identity).Status)
	}
}

func TestParkMarksARowOnceAndMovesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	row := w.deadRow(key("k"))
	for i, want := range []bool{true, false} {
		marked, err := w.log.Park(t.Context(), row, "ann", "after 3 replays")
		if err != nil || marked != want {
			t.Errorf("time %d: %t, %v; want %t", i, marked, err, want)
		}
	}
	got := w.read(row.Identity)
	wantVersion(t, got, row.Version)
	if !got.At.Equal(row.At) || got.Remark != "parked after 3 replays: no such order" || len(w.events(row.Identity)) != 2 {
		t.Errorf("at %v, remark %q, %d events", got.At, got.Remark, len(w.events(row.Identity)))
	}
	moved := row
	moved.Replays++
	if marked, err := w.log.Park(t.Context(), moved, "ann", "x"); marked || err != nil {
		t.Errorf("a row that has moved: %t, %v", marked, err)
	}
	if _, err := w.log.Park(t.Context(), absent(key("none")), "ann", "x"); !errors.Is(err, ErrTransition) {
		t.Errorf("no row: %v", err)
	}
}
