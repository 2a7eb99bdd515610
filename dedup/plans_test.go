package dedup

import (
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a log of some thousand rows on a server that writes down each statement, when rows go all their ways, are
// listed, counted and looked for, then no statement over the log reads a table from end to end, on MariaDB and MySQL.
// (rollbackd_meta has some rows, and may be read as a whole.)
func TestEveryStatementGoesByAnIndex(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	w := newWorldOn(t, server.Database(t))
	done := entriesNamed("order-", 3000)
	assert.OK(t, w.insertSuccess(done...))
	w.tell("TRUE")
	w.exec("ANALYZE TABLE consumer_log, consumer_log_event")
	server.KeepStatements(t)
	ctx := t.Context()

	// what lanes do
	ok := func(results ...any) {
		t.Helper()
		for _, r := range results {
			err, _ := r.(error)
			errs, _ := r.([]error)
			assert.OK(t, errors.Join(append(errs, err)...))
		}
	}
	all := entriesNamed("", 40)
	claims := require.All(w.log.ClaimAll(ctx, fresh(all[:20]), "lane/1"))(t)
	ok(w.inTx(func(tx *sql.Tx) error {
		if err := w.log.Hold(ctx, tx, claims[:3]); err != nil {
			return err
		}
		return w.log.SuccessAll(ctx, tx, claims[:3])
	}))
	ok(w.success(claims[3]))
	ok(w.log.MarkAll(ctx, claims[4:6]))
	ok(w.log.FailAll(ctx, []Failure{{Claim: claims[6], Cause: "no stock"}, {Claim: claims[7], Cause: "no stock"}}))
	row := w.fail(claims[8], "no stock")
	ok(w.log.UnclaimAll(ctx, claims[9:11]))
	ok(w.log.UnclaimAll(ctx, claims[11:12]))
	ok(w.log.BlameAll(ctx, []Blamed{{Entry: all[20], Cause: "no shelf"}}, "lane/1"))
	ok(w.log.LookUp(ctx, []Identity{row.Identity, {"g", "u", "x"}}))
	ok(w.log.Holds(ctx, row.Identity, row.Version))
	w.dead(Death{Entry: all[21], Reason: "malformed", Cause: "x"})
	ok(w.log.Dead(ctx, row, all[8], "exhausted", "x"))
	ok(w.log.ReserveLetters(ctx, letterLimit, 101))
	ok(w.log.DeadRows(ctx, []Death{{w.read(all[6].Identity), all[6], "exhausted", "x"}}))

	// what people and the keeper do
	dead := w.read(all[8].Identity)
	ok(w.log.Reopen(ctx, dead, all[8], ReplayNote{By: "anna", Token: "replay/1"}))
	ok(w.log.Discard(ctx, w.read(all[21].Identity), all[21], "anna", "ours"))
	ok(w.log.Park(ctx, w.read(all[6].Identity), "anna", "later"))
	w.events(all[8].Identity)
	f := Filter{Group: "g"}
	ok(w.log.List(ctx, f))
	ok(w.log.Look(ctx, f, 1000, func(Row) bool { return true }))
	ok(w.log.CountReasons(ctx, f))
	ok(w.log.Count(ctx, f, 1, 1000))
	ok(w.log.CountDead(ctx))
	cooling := Cooling{After: time.Minute, Most: time.Hour, MaxReplays: 3, Begun: "compensation/"}
	ok(w.log.CountDue(ctx, "g", cooling, 10))
	ok(w.log.OldestOpen(ctx))
	ok(w.log.Oldest(ctx, "g"))
	ok(w.log.Mentioning(ctx, "g", "t", "0007", 10))
	ok(w.log.Holding(ctx, "g", []Status{Dead, Failed}, [][]byte{[]byte("0007")}, 10, func(Row) error { return nil }))
	ok(w.log.Groups(ctx, 10))
	ok(w.log.Tags(ctx, "g"))
	ok(w.log.ReadAll(ctx, []Identity{row.Identity, dead.Identity}))
	ok(w.log.Begun(ctx, "g", "replay/", time.Now().Add(-time.Hour), time.Now(), 10))
	last := require.Get(w.log.LastEvent(ctx))(t)
	ok(w.log.CountBy(ctx, "g", "anna", Failed, last-10))
	ok(w.log.StepsBy(ctx, "g", "anna", Failed, last-10, 10))
	ok(w.log.EventFeed(ctx, last-10, 10))
	ok(w.log.Bookmark(ctx, "g"))
	ok(w.log.MoveBookmark(ctx, "g", last))
	ok(w.log.Paused(ctx, "g", "q"))
	ok(w.log.Waypoint(ctx, "mend", "run"))
	ok(w.log.Waypoints(ctx, "mend"))
	ok(w.log.SchemaID(ctx))
	ok(w.log.CountPrunable(ctx, monthOld))
	ok(w.log.Prune(ctx, monthOld))
	for ago := range 400 {
		ok(w.log.AddMinute(ctx, "g", "q", time.Duration(ago)*time.Minute, Minute{}))
	}
	ok(w.log.Minutes(ctx, "g", "q", time.Hour))

	reads, looked := server.WholeReads(t, w.dsn, "consumer_log", "consumer_log_event", "consumer_log_minute")
	for _, text := range reads {
		t.Error("reads ", text)
	}
	assert.AtLeast(t, looked, 40, "statements were explained: the test looks at nothing")
}

// Where it matters by which index, how many rows and in which order a statement goes, its plan says so. Statistics may
// make another index look better; of an empty table every plan costs the same.
func TestStatementsGoByTheirIndex(t *testing.T) {
	w := newWorld(t)
	const success, dead = 6000, 50
	var rows []Row
	for i := range success {
		age := time.Hour
		if i < 4000 {
			age = month + time.Hour
		}
		rows = append(rows, Row{Identity: key(fmt.Sprintf("order-%06d", i)), Version: Version{Status: Success}, Age: age})
	}
	for i := range dead {
		rows = append(rows, Row{Identity: key(fmt.Sprint("dead ", i)), Version: Version{Status: Dead}, Reason: "malformed"})
	}
	w.put(rows...)
	w.tell("TRUE")
	w.exec("ANALYZE TABLE consumer_log, consumer_log_event")

	keys, batch := make([]Identity, 500), make([]oldRow, pruneRows)
	for i := range keys {
		keys[i] = rows[i*12].Identity
	}
	for i := range batch {
		batch[i].Identity = rows[i].Identity
	}
	assert.Is(t, lookUpSome(keys), len(keys), "keys in one query")
	several := append([]Identity{{"g", "another", "k"}}, keys...)
	before, old := time.Now().Add(-month).UnixMicro(), time.Now().Add(-month-2*time.Hour).UnixMicro()
	claim := w.log.begin(actionClaim, Row{Identity: rows[0].Identity, Version: Version{Status: Failed, Attempts: 1}})
	type plan struct {
		statement
		most  int    // rows that it reads of a table
		index string // of its tables in turn
	}
	plans := map[string]plan{
		"look up one tag":     {w.log.ofKeys(keys, rowColumns), 600, "PRIMARY"},
		"look up several":     {w.log.ofKeys(several[:lookUpSome(several)], rowColumns), 600, "PRIMARY"},
		"prune, first page":   {w.log.pruneText(Success, before, nil), success, "by_status"},
		"prune, later page":   {w.log.pruneText(Success, before, &oldRow{rows[500].Identity, old}), success, "by_status"},
		"prune":               {w.log.deleteText(Success, before, batch, false), 600, "PRIMARY"},
		"prune with events":   {w.log.deleteText(Success, before, batch, true), 600, "PRIMARY by_identity"},
		"prune, count events": {w.log.storyText(batch), 600, "by_identity"},
		// through the index of what its guards name it would wait for other identities' rows
		"a transition": {w.log.update([]*change{claim}), 1, "PRIMARY"},
	}
	row := func(name string, age time.Duration) *pageEnd {
		return &pageEnd{Dead, time.Now().Add(-age).UnixMicro(), []byte("t"), []byte(name)}
	}
	for name, c := range map[string]struct {
		f    Filter
		from *pageEnd
	}{
		"by status": {Filter{}, nil}, "a later page": {Filter{}, row("dead 3", 0)}, "by tag": {Filter{Tag: "t"}, nil},
		"by reason":        {Filter{Reasons: []Reason{"malformed"}}, nil},
		"by key":           {Filter{Keys: []string{"dead 3"}}, nil},
		"by key and tag":   {Filter{Keys: []string{"dead 3"}, Tag: "t"}, nil},
		"since yesterday":  {Filter{Since: time.Now().Add(-24 * time.Hour)}, nil},
		"until long after": {Filter{Until: time.Now().Add(24 * time.Hour)}, nil},
		"down to a row":    {Filter{Remark: "x", upTo: row("dead 4", time.Hour)}, row("dead 3", 0)},
	} {
		c.f.Group = "g"
		assert.OK(t, w.log.complete(t.Context(), &c.f))
		plans["list "+name] = plan{w.log.listText(c.f, rowColumns, Dead, c.from, 100), 200, ""}
		plans["count "+name] = plan{w.log.reasonsText(c.f), 200, "by_status"}
	}
	for name, p := range plans {
		var index []string
		for _, line := range stack.RowsOf(t, w.pool, stack.Explain+p.String(), p.args...) {
			n, _ := strconv.Atoi(line["rows"])
			index = append(index, line["key"])
			sorts := strings.HasPrefix(name, "prune") && strings.Contains(line["Extra"], "filesort")
			assert.That(t, line["type"] != "ALL" && line["type"] != "index" && line["key"] != "" && n <= p.most && !sorts,
				"%s: %v, want at most %d rows of an index, in its order", name, line, p.most)
		}
		got := strings.Join(index, " ")
		assert.That(t, p.index == "" || got == p.index, "%s goes by %q, want %q", name, got, p.index)
	}
}
