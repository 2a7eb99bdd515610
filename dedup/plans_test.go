package dedup

import (
	"database/sql"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a log of some thousand rows on a server that writes down each statement, when rows go all their ways, are
// listed, counted and looked for, then no statement over the log reads a table from end to end, on MariaDB and MySQL.
// (rollbackd_meta has some rows, and may be read as a whole.)
func TestEveryStatementGoesByAnIndex(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	w := newWorldOn(t, server.Database(t))
	old := entries(3000)
	wantError(t, "insert", w.insertSuccess(old...), nil)
	w.exec("INSERT INTO consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays, `by`) " +
		"SELECT group_name, msg_tag, msg_key, consumer_timestamp, 1, 1, 0, 'them' FROM consumer_log")
	w.exec("ANALYZE TABLE consumer_log, consumer_log_event")
	server.KeepStatements(t)
	ctx := t.Context()

	// what lanes do
	must := func(what string, errs ...error) {
		t.Helper()
		for _, err := range errs {
			wantError(t, what, err, nil)
		}
	}
	_, all := rowsNamed(40)
	claims, errs := w.log.ClaimAll(ctx, fresh(all[:20]), "lane/1")
	must("claim", errs...)
	must("apply", w.inTx(func(tx *sql.Tx) error {
		if err := w.log.Hold(ctx, tx, claims[:3]); err != nil {
			return err
		}
		return w.log.SuccessAll(ctx, tx, claims[:3])
	}))
	must("apply one", w.success(claims[3]))
	must("mark", w.log.MarkAll(ctx, claims[4:6])...)
	_, errs = w.log.FailAll(ctx, []Failure{{claims[6], "no stock"}, {claims[7], "no stock"}})
	must("fail", errs...)
	row := w.fail(claims[8], "no stock")
	must("give back", w.log.UnclaimAll(ctx, claims[9:11])...)
	must("give one back", w.log.Unclaim(ctx, claims[11]))
	_, errs = w.log.BlameAll(ctx, []Blamed{{all[20], "no shelf"}}, "lane/1")
	must("blame", errs...)
	_, err := w.log.LookUp(ctx, []Identity{row.Identity, {"g", "u", "x"}})
	must("look up", err)
	_, err = w.log.Holds(ctx, row.Identity, row.Version)
	must("compare", err)
	must("file", w.log.DeadAll(ctx, []Letter{{all[21], "malformed", "x"}}),
		w.log.Dead(ctx, row, all[8], "exhausted", "x"))
	_, _, err = w.log.ReserveLetters(ctx, letterLimit(), 101)
	must("reserve letters", err)
	must("file rows", w.log.DeadRows(ctx, []Death{{w.read(all[6].Identity), all[6], "exhausted", "x"}})...)

	// what people and the keeper do
	dead := w.read(all[8].Identity)
	_, err = w.log.Reopen(ctx, dead, all[8], ReplayNote{By: "anna", Token: "replay/1"})
	must("reopen", err)
	must("discard", w.log.Discard(ctx, w.read(all[21].Identity), all[21], "anna", "ours"))
	_, err = w.log.Park(ctx, w.read(all[6].Identity), "anna", "later")
	must("park", err)
	w.events(all[8].Identity)
	f := Filter{Group: "g"}
	_, _, err = w.log.List(ctx, f)
	must("list", err)
	_, _, err = w.log.Look(ctx, f, 1000, func(Row) bool { return true })
	must("look", err)
	_, err = w.log.CountReasons(ctx, f)
	must("count reasons", err)
	_, _, err = w.log.Count(ctx, f, 1, 1000)
	must("count", err)
	_, err = w.log.CountDead(ctx)
	must("count the dead", err)
	cooling := Cooling{After: time.Minute, Most: time.Hour, MaxReplays: 3, Begun: "compensation/"}
	_, err = w.log.CountDue(ctx, "g", cooling, 10)
	must("count what is due", err)
	_, err = w.log.OldestOpen(ctx)
	must("the oldest open", err)
	_, err = w.log.Oldest(ctx, "g")
	must("the oldest", err)
	_, _, err = w.log.Mentioning(ctx, "g", "t", "0007", 10)
	must("mention", err)
	_, err = w.log.Holding(ctx, "g", []Status{Dead, Failed}, [][]byte{[]byte("0007")}, 10, func(Row) error { return nil })
	must("hold", err)
	_, err = w.log.Groups(ctx, 10)
	must("groups", err)
	_, err = w.log.Tags(ctx, "g")
	must("tags", err)
	_, err = w.log.ReadAll(ctx, []Identity{row.Identity, dead.Identity})
	must("read", err)
	_, err = w.log.Begun(ctx, "g", "replay/", time.Now().Add(-time.Hour), time.Now(), 10)
	must("begun", err)
	last, err := w.log.LastEvent(ctx)
	must("the last event", err)
	_, err = w.log.CountBy(ctx, "g", "anna", Failed, last-10)
	must("count steps", err)
	_, err = w.log.StepsBy(ctx, "g", "anna", Failed, last-10, 10)
	must("steps", err)
	_, err = w.log.EventFeed(ctx, last-10, 10)
	must("feed", err)
	_, err = w.log.Bookmark(ctx, "g")
	must("bookmark", err, w.log.MoveBookmark(ctx, "g", last))
	_, err = w.log.Paused(ctx, "g", "q")
	must("paused", err)
	_, _, err = w.log.Waypoint(ctx, "mend", "run")
	must("waypoint", err)
	_, err = w.log.Waypoints(ctx, "mend")
	must("waypoints", err)
	_, err = w.log.SchemaID(ctx)
	must("schema", err)
	_, err = w.log.CountPrunable(ctx, PruneOptions{Group: "g", OlderThan: month})
	must("count what is old", err)
	_, err = w.log.Prune(ctx, PruneOptions{Group: "g", OlderThan: month})
	must("prune", err)

	reads, looked := server.WholeReads(t, w.dsn, "consumer_log", "consumer_log_event")
	for _, text := range reads {
		t.Error("reads ", text)
	}
	if looked < 40 {
		t.Errorf("%d statements were explained: the test looks at nothing", looked)
	}
}
