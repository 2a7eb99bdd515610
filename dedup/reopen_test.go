package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestAMendedBodyTakesTheRowAndEndsItsFormerIdentity(t *testing.T) {
	w := newWorld(t)
	k := key("k")
	row := w.dead(deathOf("k"))
	mended, back := entryOf(k), entryOf(k)
	mended.Body, mended.Properties, mended.MessageID = []byte(`{"mended":1}`), []byte(`{"type":"x"}`), "other"
	mended.BodyHash = sha256.Sum256(mended.Body)
	former := Entry{Identity: Identity{k.Group, "rollbackd.conflict", "sha256:1"}, Body: row.Body, BodyHash: back.BodyHash}
	note := ReplayNote{By: "ann", Filter: "file", Token: "t", Mended: &former}
	left := require.Get(w.log.Reopen(t.Context(), row, mended, note))(t)
	got := w.read(k)
	wantVersion(t, got, Version{Failed, 0, 1, "t"})
	if string(got.Body) != `{"mended":1}` || string(got.Properties) != `{"type":"x"}` || got.MessageID != "other" ||
		string(got.BodyHash) != string(mended.BodyHash[:]) || string(left.BodyHash) != string(got.BodyHash) {
		t.Errorf("row = %+v, returned hash %x; want all of the mended message", got, left.BodyHash)
	}
	story, want := w.story(k), "dead>failed 0/1 by ann: body sha256 "+hex.EncodeToString(row.BodyHash)+" mended to "+
		hex.EncodeToString(mended.BodyHash[:])+": replayed file"
	assert.That(t, strings.HasSuffix(story, want), "story %q, want %q", story, want)
	ended := w.read(former.Identity)
	assert.That(t, ended.Status == Discarded && strings.Contains(ended.Remark, "was mended by ann") &&
		string(ended.Body) == string(row.Body), "former identity: %v, %q", ended.Status, ended.Remark)
	// and again, although the former identity has its row by now
	require.Get(w.log.Reopen(t.Context(), got, back, ReplayNote{By: "ann", Token: "t2", Mended: &former}))(t)
	wantVersion(t, w.read(former.Identity), ended.Version)

	// a mend of a row that somebody moved changes nothing
	other := former
	other.Key = "sha256:2"
	_, err := w.log.Reopen(t.Context(), row, mended, ReplayNote{Token: "late", Mended: &other})
	if !errors.Is(err, ErrLost) || string(w.read(k).Body) != string(back.Body) || w.read(other.Identity).Status != Absent {
		t.Errorf("%v, body %q; want nothing changed", err, w.read(k).Body)
	}
}
