package dedup

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

func TestFastPathMeetingARowOfOurs(t *testing.T) {
	w := newWorld(t)
	all := entriesNamed("order-", 10)
	assert.OK(t, w.insertSuccess(all[3]))

	assert.Error(t, w.insertSuccess(all...), ErrExists, "insert again")

	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), 1, "rows")
	err := w.insertSuccess(all[5], all[5]) // which looking up again would not explain
	assert.That(t, err != nil && !errors.Is(err, ErrExists), "one identity twice in a batch = %v, want another error", err)
	assert.OK(t, w.insertSuccess())

	// one key under several groups and tags
	keys := []Identity{{"g", "t", "k"}, {"g", "u", "k"}, {"h", "t", "k"}}
	assert.OK(t, w.insertSuccess(mapped(keys, entryOf)...))
	for _, row := range w.lookUp(keys...) {
		assert.Is(t, row.Status, Success, "%v", row.Identity)
	}
}

func TestWhatIsTakenBackWasNeverThere(t *testing.T) {
	w := newWorld(t)
	stays, goes := entryOf(key("stays")), entryOf(key("goes"))
	assert.OK(t, w.inTx(func(tx *sql.Tx) error {
		assert.OK(t, w.log.InsertSuccess(t.Context(), tx, []Entry{stays, goes}))
		assert.OK(t, w.log.TakeBack(t.Context(), tx, []Identity{goes.Identity}))
		err := w.log.TakeBack(t.Context(), tx, []Identity{goes.Identity})
		assert.That(t, err != nil, "taken back twice, want an error: its row is not this transaction's")
		return nil
	}))
	assert.Is(t, w.read(stays.Identity).Status, Success, "the row that stays")
	assert.Is(t, w.read(goes.Identity).Status, Absent, "the other")
}

// A 1062 of another table says nothing about our row: taken for ours, the engine would look up and start anew for ever.
func TestDuplicateOfAnotherTableIsNotOurs(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE audit (n INT, UNIQUE KEY audit_once (n))")
	w.exec("INSERT INTO audit VALUES (1)")
	w.exec("CREATE TRIGGER audit_log BEFORE INSERT ON consumer_log FOR EACH ROW INSERT INTO audit VALUES (1)")
	k := key("' for key 'PRIMARY")
	err := w.insertSuccess(entryOf(k))
	assert.That(t, !errors.Is(err, ErrExists) && mysqldb.Classify(err) == mysqldb.FaultData, "insert = %v (%v)", err,
		mysqldb.Classify(err))
	_, err = w.log.Claim(t.Context(), absent(k), entryOf(k), "o")
	assert.That(t, !errors.Is(err, ErrLost) && mysqldb.Classify(err) == mysqldb.FaultData, "claim = %v (%v)", err,
		mysqldb.Classify(err))
	w.exec("DROP TRIGGER audit_log")
	longest := Identity{strings.Repeat("'", MaxGroup), strings.Repeat("\\", MaxTag), strings.Repeat("é", MaxKey/2)}
	for _, k := range []Identity{k, longest} {
		assert.OK(t, w.insertSuccess(entryOf(k)))
		assert.Error(t, w.insertSuccess(entryOf(k)), ErrExists, "insert again")
	}
}

func TestFastPathWritesInTheOrderOfKeys(t *testing.T) {
	w := newWorld(t)
	all := entriesNamed("order-", 1200)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	r, first := &counting{}, all[0].Key
	err := w.inTx(func(tx *sql.Tx) error { r.Execer = tx; return w.log.InsertSuccess(t.Context(), r, all) })
	assert.That(t, err == nil && len(r.names) == len(all) && slices.IsSorted(r.names), "%d names, sorted %v, %v",
		len(r.names), slices.IsSorted(r.names), err)
	assert.Is(t, all[0].Key, first, "the caller's entries were reordered: the first is")
}

func TestChunksHoldAtMostSoManyRowsAndBytes(t *testing.T) {
	for _, c := range []struct{ n, size, want int }{
		{1, 10, 1}, {maxRows, 10, maxRows}, {maxRows + 1, 10, maxRows}, {5, maxBytes, 1}, {5, 2 * maxBytes, 1},
		{5, maxBytes / 2, 2},
	} {
		assert.Is(t, chunkOf(c.n, func(int) int { return c.size }), c.want,
			"%d rows of %d bytes: in a statement", c.n, c.size)
	}
}

// Batches that are full have one text, which a connection prepares once; what it stores is the same.
func TestFullBatchesAreInsertedByAPreparedStatement(t *testing.T) {
	w := newWorld(t)
	w.pool.SetMaxOpenConns(1)
	count := func(name string) (n int) {
		t.Helper()
		row := w.pool.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE '"+name+"'")
		assert.OK(t, row.Scan(&name, &n))
		return n
	}
	byMigration, ran := count("Com_stmt_prepare"), count("Com_stmt_execute")
	all := entriesNamed("order-", 3*maxRows+3*(leastRepeated-1))
	all[maxRows].Key, all[maxRows].MessageID = "'\\\"é", ""
	for i := range 3 {
		assert.OK(t, w.insertSuccess(all[i*maxRows:(i+1)*maxRows]...))
	}
	prepares, executes := count("Com_stmt_prepare")-byMigration, count("Com_stmt_execute")-ran
	assert.That(t, prepares == 1 && executes == 2, "three full batches: prepared %d times, executed so %d times; want 1 "+
		"and 2", prepares, executes)
	for i := range 3 {
		from := 3*maxRows + i*(leastRepeated-1)
		assert.OK(t, w.insertSuccess(all[from:from+leastRepeated-1]...))
	}
	assert.Is(t, count("Com_stmt_prepare")-byMigration, 1, "small batches were prepared too: times")
	for _, i := range []int{0, maxRows, 2*maxRows + 1, len(all) - 1} {
		row := w.read(all[i].Identity)
		wantVersion(t, row, Version{Success, 1, 0, ""})
		assert.That(t, row.MessageID == all[i].MessageID && string(row.BodyHash) == string(all[i].BodyHash[:]),
			"row %d is %+v", i, row)
	}
	assert.Error(t, w.insertSuccess(all[:maxRows]...), ErrExists, "a copy in a full batch")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), len(all), "rows")
}

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
		"consumer_log WHERE consumer_status = 1 AND msg_body IS NULL AND LENGTH(body_hash) = 32": 500,
		"consumer_log WHERE consumer_status = 3 AND LENGTH(msg_body) = 5000":                     500,
		"consumer_log_event WHERE `by` = 'ann' AND error = 'as the old log has it'":              500,
	} {
		assert.Is(t, w.number("SELECT COUNT(*) FROM "+query), want, "rows of %s", query)
	}
}

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
	assert.That(t, errors.Is(err, ErrLost) && string(w.read(k).Body) == string(back.Body) &&
		w.read(other.Identity).Status == Absent, "%v, body %q; want nothing changed", err, w.read(k).Body)
}

// besides is a world in memory with the rows that the trials meet.
func (w *world) besides(all []trial) *world {
	log, memory, err := NewMemory(testOptions, time.Now)
	require.OK(w.t, err)
	now := time.Now().UTC()
	for _, tr := range all {
		if tr.real.Status != Absent {
			memory.rows[tr.key] = Row{
				Identity: tr.key, Version: tr.real, Body: []byte("body"), At: now.Add(-tr.age), CreatedAt: now,
			}
		}
	}
	return &world{t: w.t, log: log, memory: memory}
}

// sameRows compares the rows that trials have left in memory and in the database.
func (w *world) sameRows(in *world, keys []Identity) {
	w.t.Helper()
	got := require.Get(in.log.ReadAll(w.t.Context(), keys))(w.t)
	want := require.Get(w.log.ReadAll(w.t.Context(), keys))(w.t)
	about := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Minute })
	for _, k := range keys {
		diff := cmp.Diff(want[k], got[k], cmpopts.EquateEmpty(), cmpopts.EquateApproxTime(time.Minute), about,
			cmpopts.IgnoreUnexported(Row{}))
		assert.Is(w.t, diff, "", "%s (-database +memory)", k.Key)
	}
}
