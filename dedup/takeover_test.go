package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func (w *world) waypoint(name string) Waypoint {
	w.t.Helper()
	at, _, err := w.log.Waypoint(w.t.Context(), name, "run of "+name)
	if err != nil {
		w.t.Fatal(err)
	}
	return at
}

func takenOf(name string, status Status) Taken {
	return Taken{Entry: entryOf(key(name)), From: absent(key(name)), Status: status, Attempts: 2, Origin: "old " + name,
		At: time.Date(2026, 11, 1, 12, 30, 0, 0, time.UTC), Remark: "as the old log has it", By: "ann"}
}

// Given rows of another log, when they are taken over, then a success keeps its hash and its time and no body, what was
// left open is dead with all that is known of it, and only that has a line of its story.
func TestWhatIsTakenOverStandsAsTheOtherLogHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	done, open := takenOf("done", Success), takenOf("open", Dead)
	late := takenOf("late", Success)
	late.At, late.Attempts = time.Now().Add(24*time.Hour), -3
	if _, err := w.log.TakeOver(t.Context(), w.waypoint("x"), []byte("note"), []Taken{open, late, done}); err != nil {
		t.Fatal(err)
	}
	row := w.read(done.Identity)
	if row.Version != (Version{Success, 2, 0, "taken/old done"}) || row.Body != nil || !row.At.Equal(done.At) ||
		!row.CreatedAt.Equal(done.At) || !bytes.Equal(row.BodyHash, done.BodyHash[:]) || row.Reason != "" ||
		!row.DeadAt.IsZero() || !row.TakenOver() || row.Origin() != "old done" {
		t.Errorf("done: %+v", row)
	}
	row = w.read(open.Identity)
	if row.Version != (Version{Dead, 2, 0, "taken/old open"}) || !bytes.Equal(row.Body, open.Body) ||
		row.Reason != ReasonEffectUnknown || row.Remark != "as the old log has it" || row.DeadAt.IsZero() ||
		row.Age > time.Hour || !row.CreatedAt.Equal(open.At) {
		t.Errorf("open: %+v", row)
	}
	row = w.read(late.Identity)
	if row.Attempts != 1 || row.Age < 0 || row.Age > time.Hour {
		t.Errorf("a time in the future must count as now, and attempts below one as one: %+v", row)
	}
	if story := w.story(open.Identity); story != "absent>dead 2/0" {
		t.Errorf("open's story is %s", story)
	}
	if story := w.story(done.Identity); story != "" {
		t.Errorf("done's story is %s", story)
	}
}

// Given what was left open, when the other log says success later, then the row is success, with the other log's time
// and without a body.
func TestWhatWasLeftOpenBecomesSuccessLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := takenOf("k", Dead)
	at, err := w.log.TakeOver(t.Context(), w.waypoint("x"), nil, []Taken{open})
	if err != nil {
		t.Fatal(err)
	}
	again := takenOf("k", Dead)
	again.From, again.Attempts, again.Remark = w.read(open.Identity), 3, "timeout"
	if at, err = w.log.TakeOver(t.Context(), at, nil, []Taken{again}); err != nil {
		t.Fatal(err)
	}
	if row := w.read(open.Identity); row.Attempts != 3 || row.Remark != "timeout" || row.Status != Dead {
		t.Errorf("renewed: %+v", row)
	}
	done := takenOf("k", Success)
	done.From, done.Attempts = w.read(open.Identity), 4
	if _, err = w.log.TakeOver(t.Context(), at, nil, []Taken{done}); err != nil {
		t.Fatal(err)
	}
	row := w.read(open.Identity)
	if row.Version != (Version{Success, 4, 0, "taken/old k"}) || !row.At.Equal(done.At) || row.Body != nil ||
		row.Reason != "" || row.Remark != "" || !row.DeadAt.IsZero() || len(row.BodyHash) == 0 {
		t.Errorf("row: %+v", row)
	}
	if story := w.story(open.Identity); story != "absent>dead 2/0, dead>dead 3/0, dead>success 4/0" {
		t.Errorf("story: %s", story)
	}
}

// Given a chunk of which one row was moved by somebody, when it is taken over, then nothing of it is written and the
// waypoint stays.
func TestAChunkIsTakenOverWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open := takenOf("open", Dead)
	at, err := w.log.TakeOver(t.Context(), w.waypoint("x"), []byte("first"), []Taken{open})
	if err != nil {
		t.Fatal(err)
	}
	was := w.read(open.Identity)
	if err := w.log.Discard(t.Context(), was, open.Entry, "ann", "done by hand"); err != nil {
		t.Fatal(err)
	}
	done := takenOf("open", Success)
	done.From = was
	_, err = w.log.TakeOver(t.Context(), at, []byte("second"), []Taken{done, takenOf("other", Success)})
	if !errors.Is(err, ErrLost) {
		t.Errorf("%v, want ErrLost", err)
	}
	if w.read(open.Identity).Status != Discarded || w.read(key("other")).Status != Absent {
		t.Error("a part of the chunk was written")
	}
	if _, note, err := w.log.Waypoint(t.Context(), "x", "r"); err != nil || string(note) != "first" {
		t.Errorf("the waypoint's note is %q, %v; want first", note, err)
	}
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at) VALUES (?, ?, ?, 1, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))", keyArgs(key("there"))...)
	_, err = w.log.TakeOver(t.Context(), at, nil, []Taken{takenOf("other", Success), takenOf("there", Success)})
	if !errors.Is(err, ErrLost) || w.read(key("other")).Status != Absent {
		t.Errorf("%v, want ErrLost and nothing written", err)
	}
}

// Given two who go through one log, when both move the waypoint from the same place, then one has moved it and the
// other has written nothing.
func TestOfTwoAtOneWaypointOneGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.waypoint("x"), w.waypoint("x")
	second.run = "the other run"
	at, err := w.log.TakeOver(t.Context(), first, []byte("a"), []Taken{takenOf("a", Success)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.log.TakeOver(t.Context(), second, []byte("b"), []Taken{takenOf("b", Success)})
	if !errors.Is(err, ErrOvertaken) || w.read(key("b")).Status != Absent {
		t.Errorf("%v, want ErrOvertaken and nothing written", err)
	}
	second, note, err := w.log.Waypoint(t.Context(), "x", "the other run")
	if err != nil || string(note) != "a" {
		t.Fatalf("%q, %v", note, err)
	}
	if _, err := w.log.TakeOver(t.Context(), second, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err = w.log.TakeOver(t.Context(), at, nil, nil); !errors.Is(err, ErrOvertaken) {
		t.Errorf("%v, want ErrOvertaken", err)
	}
}

// A call that was answered may be repeated, as after a lost answer: it is done, and done once.
func TestTakingOverMayBeRepeatedAfterALostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from := w.waypoint("x")
	var at Waypoint
	for _, note := range []string{"n", "n", "another note"} {
		var err error
		if at, err = w.log.TakeOver(t.Context(), from, []byte(note), []Taken{takenOf("a", Dead)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.log.TakeOver(t.Context(), at, []byte("next"), nil); err != nil {
		t.Fatal(err)
	}
	if story := w.story(key("a")); story != "absent>dead 2/0" {
		t.Errorf("story: %s", story)
	}
}

func TestWaypointsAreListedByTheBeginningOfTheirNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"x:b", "x:a", "y:a"} {
		if _, err := w.log.TakeOver(t.Context(), w.waypoint(name), []byte(strings.Repeat(name, 200)), nil); err != nil {
			t.Fatal(err)
		}
	}
	notes, err := w.log.Waypoints(t.Context(), "x:")
	if err != nil || len(notes) != 2 || string(notes[0]) != strings.Repeat("x:a", 200) {
		t.Errorf("%q, %v", notes, err)
	}
}

func TestANoteOfAWaypointMayGrowAndShrink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := w.waypoint("x")
	w.waypoint("x:y")
	for _, size := range []int{0, 1, 255, 256, 3000, 511, 0, 12} {
		want := bytes.Repeat([]byte{0xff, 0}, size)[:size]
		var err error
		if at, err = w.log.TakeOver(t.Context(), at, want, nil); err != nil {
			t.Fatal(err)
		}
		_, note, err := w.log.Waypoint(t.Context(), "x", "r")
		if err != nil || !bytes.Equal(note, want) {
			t.Errorf("a note of %d bytes is read as %d bytes, %v", size, len(note), err)
		}
	}
	if _, _, err := w.log.Waypoint(t.Context(), strings.Repeat("n", 91), "r"); err == nil {
		t.Error("a name that is too long is accepted")
	}
}

// A thousand rows, of which many are large, need statements of their own and are one transaction all the same.
func TestAThousandLargeRowsAreTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var all []Taken
	for i := range 1000 {
		taken := takenOf(fmt.Sprint("k", i), []Status{Success, Dead}[i%2])
		taken.Body = bytes.Repeat([]byte("'"), 5000)
		all = append(all, taken)
	}
	if _, err := w.log.TakeOver(t.Context(), w.waypoint("x"), nil, all); err != nil {
		t.Fatal(err)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status IN (1, 3)"); n != 1000 {
		t.Errorf("%d rows", n)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log_event"); n != 500 {
		t.Errorf("%d events, want 500", n)
	}
}
