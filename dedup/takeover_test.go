package dedup

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func (w *world) waypoint(name string) Waypoint {
	w.t.Helper()
	at, _ := w.waypointOf(name, "run of "+name)
	return at
}

func (w *world) waypointOf(name, run string) (Waypoint, string) {
	w.t.Helper()
	at, note, err := w.log.Waypoint(w.t.Context(), name, run)
	assert.OK(w.t, err)
	return at, string(note)
}

// takeOver moves on from a waypoint, with these rows, or with none and an error.
func (w *world) takeOver(at Waypoint, note string, want error, all ...Taken) Waypoint {
	w.t.Helper()
	at, err := w.log.TakeOver(w.t.Context(), at, []byte(note), all)
	assert.Error(w.t, err, want, "take over "+note)
	return at
}

func takenOf(name string, status Status) Taken {
	return Taken{Entry: entryOf(key(name)), From: absent(key(name)), Status: status, Attempts: 2, Origin: "old " + name,
		At: time.Date(2026, 11, 1, 12, 30, 0, 0, time.UTC), Remark: "as the old log has it", By: "ann"}
}

// Given rows of another log, when they are taken over, then a success keeps its hash and its time and no body, what was
// left open is dead with all that is known of it, and only that has a line of its story; when the other log says more
// of it later, it is renewed, and success in the end.
func TestWhatIsTakenOverStandsAsTheOtherLogHasIt(t *testing.T) {
	w := newWorld(t)
	done, open, late := takenOf("done", Success), takenOf("open", Dead), takenOf("late", Success)
	late.At, late.Attempts = time.Now().Add(24*time.Hour), -3
	at := w.takeOver(w.waypoint("x"), "note", nil, open, late, done)

	row := w.read(done.Identity)
	if row.Version != (Version{Success, 2, 0, "taken/old done"}) || row.Body != nil || !row.At.Equal(done.At) ||
		!row.CreatedAt.Equal(done.At) || !bytes.Equal(row.BodyHash, done.BodyHash[:]) || row.Reason != "" ||
		!row.DeadAt.IsZero() || !row.TakenOver() || row.Origin() != "old done" || w.story(done.Identity) != "" {
		t.Errorf("done: %+v, story %s", row, w.story(done.Identity))
	}
	row = w.read(open.Identity)
	assert.That(t, row.Version == (Version{Dead, 2, 0, "taken/old open"}) && bytes.Equal(row.Body, open.Body) &&
		row.Reason == ReasonEffectUnknown && row.Remark == "as the old log has it" && !row.DeadAt.IsZero() &&
		row.Age <= time.Hour && row.CreatedAt.Equal(open.At), "open: %+v", row)
	row = w.read(late.Identity)
	assert.That(t, row.Attempts == 1 && row.Age >= 0 && row.Age <= time.Hour,
		"a time in the future must count as now, and attempts below one as one: %+v", row)

	again := takenOf("open", Dead)
	again.From, again.Attempts, again.Remark = w.read(open.Identity), 3, "timeout"
	at = w.takeOver(at, "again", nil, again)
	row = w.read(open.Identity)
	assert.That(t, row.Attempts == 3 && row.Remark == "timeout" && row.Status == Dead, "renewed: %+v", row)
	ended := takenOf("open", Success)
	ended.From, ended.Attempts = w.read(open.Identity), 4
	w.takeOver(at, "ended", nil, ended)
	row = w.read(open.Identity)
	assert.That(t, row.Version == (Version{Success, 4, 0, "taken/old open"}) && row.At.Equal(done.At) &&
		row.Body == nil && row.Reason == "" && row.Remark == "" && row.DeadAt.IsZero() && len(row.BodyHash) != 0, "row: %+v",
		row)
	story, want := w.story(open.Identity), "absent>dead 2/0 by ann: as the old log has it, dead>dead 3/0 by ann: "+
		"timeout, dead>success 4/0 by ann: as the old log has it"
	assert.That(t, story == want, "story: %s\nwant:  %s", story, want)
}

// Given a chunk of which one row was moved by somebody, or stands there, when it is taken over, then nothing of it is
// written and the waypoint stays.
func TestAChunkIsTakenOverWholeOrNotAtAll(t *testing.T) {
	w := newWorld(t)
	open, done := takenOf("open", Dead), takenOf("open", Success)
	at := w.takeOver(w.waypoint("x"), "first", nil, open)
	done.From = w.read(open.Identity)
	assert.OK(t, w.log.Discard(t.Context(), done.From, open.Entry, "ann", "done by hand"))
	w.put(Row{Identity: key("there"), Version: Version{Status: Success}})
	for _, met := range []Taken{done, takenOf("there", Success)} {
		w.takeOver(at, "second", ErrLost, met, takenOf("other", Success))
	}
	_, note := w.waypointOf("x", "r")
	assert.That(t, w.read(open.Identity).Status == Discarded && w.read(key("other")).Status == Absent && note == "first",
		"a part of the chunk was written, or the waypoint's note is %q, want first", note)
}

// Given two who go through one log, when both move the waypoint from the same place, then one has moved it and the
// other has written nothing; a call that was answered may be repeated, as after a lost answer, and is done once.
func TestOfTwoAtOneWaypointOneGoesOn(t *testing.T) {
	w := newWorld(t)
	first := w.waypoint("x")
	second, _ := w.waypointOf("x", "the other run")
	var at Waypoint
	for _, note := range []string{"n", "n", "a"} {
		at = w.takeOver(first, note, nil, takenOf("a", Dead))
	}
	w.takeOver(second, "b", ErrOvertaken, takenOf("b", Success))
	second, note := w.waypointOf("x", "the other run")
	if w.read(key("b")).Status != Absent || note != "n" || len(w.events(key("a"))) != 1 {
		t.Errorf("%v is written, or the note is %q, or %s", key("b"), note, w.story(key("a")))
	}
	w.takeOver(second, "", nil)
	w.takeOver(at, "", ErrOvertaken)
}

func TestANoteOfAWaypointMayGrowAndShrinkAndIsListed(t *testing.T) {
	w := newWorld(t)
	at := w.waypoint("x:b")
	for _, size := range []int{0, 1, 255, 256, 3000, 511, 0, 12} {
		want := string(bytes.Repeat([]byte{0xff, 0}, size)[:size])
		at = w.takeOver(at, want, nil)
		_, note := w.waypointOf("x:b", "r")
		assert.That(t, note == want, "a note of %d bytes is read as %d bytes", size, len(note))
	}
	for _, name := range []string{"x:a", "y:a"} {
		w.takeOver(w.waypoint(name), strings.Repeat(name, 200), nil)
	}
	notes, err := w.log.Waypoints(t.Context(), "x:")
	assert.That(t, err == nil && len(notes) == 2 && string(notes[0]) == strings.Repeat("x:a", 200) && len(notes[1]) == 12,
		"%q, %v", notes, err)
	_, _, err = w.log.Waypoint(t.Context(), strings.Repeat("n", 91), "r")
	assert.That(t, err != nil, "a name that is too long is accepted")
}

// A thousand rows, of which many are large, need statements of their own and are one transaction all the same.
func TestAThousandLargeRowsAreTakenOverAtOnce(t *testing.T) {
	w := newWorld(t)
	var all []Taken
	for i := range 1000 {
		taken := takenOf(fmt.Sprint("k", i), []Status{Success, Dead}[i%2])
		taken.Body = bytes.Repeat([]byte("'"), 5000)
		all = append(all, taken)
	}
	w.takeOver(w.waypoint("x"), "", nil, all...)
	for query, want := range map[string]int{
		"consumer_log WHERE consumer_status IN (1, 3)": 1000, "consumer_log_event": 500,
	} {
		assert.Is(t, w.number("SELECT COUNT(*) FROM "+query), want, "rows of %s", query)
	}
}
