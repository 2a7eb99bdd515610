package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const month = 30 * 24 * time.Hour

// rowAged inserts a row, with an event, whose last transition was so long ago.
func (w *world) rowAged(k Identity, status Status, age time.Duration) {
	w.t.Helper()
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, "+
		"consumer_timestamp, created_at)"+
		" VALUES (?,?,?,?,1, UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))", append(keyArgs(k), int(status),
		age.Microseconds())...)
	w.exec("INSERT INTO consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays) VALUES (?,?,?, "+
		"UTC_TIMESTAMP(6), ?, 1, 0)",
		append(keyArgs(k), int(status))...)
}

// manySuccesses inserts n rows of one tag, all of one age, without events, as the fast path leaves them.
func (w *world) manySuccesses(tag string, n int, age time.Duration) (keys []Identity) {
	w.t.Helper()
	var entries []Entry
	for i := range n {
		k := Identity{"g", tag, fmt.Sprintf("%s-%05d", tag, i)}
		keys = append(keys, k)
		entries = append(entries, Entry{Identity: k})
	}
	wantError(w.t, "insert", w.insertSuccess(entries...), nil)
	w.exec("UPDATE consumer_log SET consumer_timestamp = UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND WHERE msg_tag = ?",
		age.Microseconds(), []byte(tag))
	return keys
}

func (w *world) prune(older time.Duration) []Pruned {
	w.t.Helper()
	pruned, err := w.log.Prune(w.t.Context(), PruneOptions{Group: "g", OlderThan: older})
	wantError(w.t, "Prune", err, nil)
	return pruned
}

// counts are the rows of a result, by status.
func counts(pruned []Pruned) map[Status]int {
	n := map[Status]int{}
	for _, p := range pruned {
		n[p.Status] = p.Rows
	}
	return n
}

func TestPruneDeletesWhatEndedLongAgoAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var stay []string
	for _, status := range Statuses() {
		for _, age := range []time.Duration{month - time.Minute, month + time.Minute} {
			for _, group := range []string{"g", "other"} {
				k := Identity{group, "t", fmt.Sprintf("%v %v", status, age)}
				w.rowAged(k, status, age)
				if group == "other" || age < month || status == Processing || status == Failed || status == Dead {
					stay = append(stay, k.String())
				}
			}
		}
	}
	// given more than a page of one moment, under several tags
	w.manySuccesses("many", 2*pruneRows+1, month+time.Hour)
	w.manySuccesses("more", 7, month+time.Hour)
	w.manySuccesses("young", 7, time.Hour)
	want := map[Status]int{Success: 2*pruneRows + 1 + 7 + 1, Discarded: 1}

	// when it is only counted, then nothing goes
	all := w.number("SELECT COUNT(*) FROM consumer_log")
	before, err := w.log.CountPrunable(t.Context(), PruneOptions{Group: "g", OlderThan: month})
	wantError(t, "CountPrunable", err, nil)
	if diff := cmp.Diff(want, counts(before)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != all {
		t.Errorf("counting left %d rows of %d", n, all)
	}

	// when it is done, then exactly that has gone, with its events
	var progress []int
	pruned, err := w.log.Prune(t.Context(), PruneOptions{Group: "g", OlderThan: month, Progress: func(rows int) {
		progress = append(progress, rows)
	}})
	wantError(t, "Prune", err, nil)
	if diff := cmp.Diff(want, counts(pruned)); diff != "" {
		t.Errorf("pruned (-want +got):\n%s", diff)
	}
	for i, p := range pruned {
		if !p.Oldest.Equal(before[i].Oldest) || p.Oldest.IsZero() {
			t.Errorf("the oldest in %v was of %v, want %v", p.Status, p.Oldest, before[i].Oldest)
		}
	}
	if n := len(progress); n < 3 || progress[n-1] != want[Success]+want[Discarded] {
		t.Errorf("progress %v, want it to end with all", progress)
	}
	var left []string
	for _, table := range []string{"consumer_log", "consumer_log_event"} {
		left = left[:0]
		for _, status := range Statuses() {
			rows := w.keysOf("SELECT group_name, msg_tag, msg_key FROM "+table+" WHERE msg_key LIKE ? AND msg_tag = 't' ORDER "+
				"BY msg_key, group_name", fmt.Sprintf("%v %%", status))
			left = append(left, rows...)
		}
		if diff := cmp.Diff(stay, left); diff != "" {
			t.Errorf("left in %s (-want +got):\n%s", table, diff)
		}
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_tag = 'young'"); n != 7 {
		t.Errorf("%d young rows are left, want 7", n)
	}
	// when it runs again, then there is nothing to do
	if diff := cmp.Diff(map[Status]int{Success: 0, Discarded: 0}, counts(w.prune(month))); diff != "" {
		t.Error(diff)
	}
}

func (w *world) keysOf(query string, args ...any) (keys []string) {
	w.t.Helper()
	keys, err := list(w.t.Context(), w.pool, sqlOf(query, args...), func(rows *sql.Rows) (string, error) {
		var k Identity
		err := rows.Scan(&k.Group, &k.Tag, &k.Key)
		return k.String(), err
	})
	wantError(w.t, query, err, nil)
	return keys
}

func TestPruneRefusesNonsense(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rowAged(key("k"), Success, month)
	for _, o := range []PruneOptions{{}, {Group: "g"}, {Group: "g", OlderThan: -time.Hour}, {OlderThan: time.Hour}} {
		if _, err := w.log.Prune(t.Context(), o); err == nil {
			t.Errorf("Prune with %+v must be refused", o)
		}
	}
	if w.read(key("k")).Status != Success {
		t.Error("a row went")
	}
}

// A discarded row that is old may be reopened between the moment when Prune reads its key and the one when it deletes.
func TestPruneLeavesARowThatMovedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rowAged(key("moves"), Discarded, month+time.Hour)
	w.rowAged(key("moves and ends again"), Discarded, month+time.Hour)
	w.rowAged(key("stays"), Discarded, month+time.Hour)
	before, err := w.log.pruneBefore(t.Context(), PruneOptions{Group: "g", OlderThan: month})
	wantError(t, "pruneBefore", err, nil)
	p := pruner{w.log, PruneOptions{Group: "g", OlderThan: month}, before, Pruned{Status: Discarded}}
	page, err := p.page(t.Context(), nil)
	if err != nil || len(page) != 3 {
		t.Fatalf("page = %v, %v", page, err)
	}
	for _, name := range []string{"moves", "moves and ends again"} {
		_, err = w.log.Reopen(t.Context(), w.read(key(name)), entryOf(key(name)), ReplayNote{By: "me", Token: name,
			Discarded: true})
		wantError(t, "reopen", err, nil)
	}
	again := key("moves and ends again")
	wantError(t, "discard", w.log.Discard(t.Context(), w.read(again), entryOf(again), "me", "again"), nil)

	wantError(t, "delete", p.delete(t.Context(), page), nil)

	if got := w.read(key("moves")).Status; got != Failed {
		t.Errorf("the reopened row is %v, want failed", got)
	}
	if n := len(w.events(key("moves"))); n != 2 {
		t.Errorf("%d events of the reopened row, want 2", n)
	}
	if got := w.read(again).Status; got != Discarded {
		t.Errorf("the row that was discarded again is %v, want discarded", got)
	}
	if got := w.read(key("stays")).Status; got != Absent {
		t.Errorf("the other row is %v, want absent", got)
	}
	if p.pruned.Rows > 1 {
		t.Errorf("%d rows counted, want 1", p.pruned.Rows)
	}
}

func TestPruneWaitsForSomebodyElsesLockAndTriesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := w.manySuccesses("t", 20, month+time.Hour)
	cleaner := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{LockWait: time.Second}))
	// given a worker that holds one of the rows, as a late duplicate does until it rolls back
	tx, err := w.pool.BeginTx(t.Context(), nil)
	wantError(t, "begin", err, nil)
	defer tx.Rollback()
	_, err = tx.Exec("SELECT 1 FROM consumer_log"+keyIs+" FOR UPDATE", keyArgs(keys[7])...)
	wantError(t, "lock", err, nil)
	done := make(chan error, 1)
	go func() {
		_, err := cleaner.log.Prune(t.Context(), PruneOptions{Group: "g", OlderThan: month})
		done <- err
	}()
	poll.Until(t, "the cleaner waits for the lock", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE "+
			"'DELETE log%'") > 0
	})
	poll.Until(t, "it gave up once", func() bool {
		return w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE "+
			"'DELETE log%'") == 0
	})
	wantError(t, "the worker's statement", func() error {
		_, err := tx.Exec("SELECT 1 FROM consumer_log")
		return err
	}(), nil)
	wantError(t, "the worker's end", tx.Rollback(), nil)
	wantError(t, "Prune", <-done, nil)
	if n := w.number("SELECT COUNT(*) FROM consumer_log"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Late duplicates and new messages come in while old rows go: whatever waits or loses a deadlock is the cleaner, never
// a message.
func TestNoMessageLosesADeadlockWhileRowsArePruned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.manySuccesses("t", 6000, month+time.Hour)
	for i := 0; i < len(old); i += 100 {
		w.rowAged(Identity{"g", "t", old[i].Key + " discarded"}, Discarded, month+time.Hour)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; ctx.Err() == nil; i += 4 {
				var entries []Entry
				for j := range 50 { // new ones, each batch around an old one
					entries = append(entries, Entry{
						Identity: Identity{"g", "t", fmt.Sprintf("%s +%d %d", old[(i*50+j)%len(old)].Key, worker, i)},
					})
				}
				entries = append(entries, Entry{Identity: old[i*37%len(old)]})
				err := w.insertSuccess(entries...)
				if err != nil && !errors.Is(err, ErrExists) {
					t.Errorf("a worker met %v", err)
					return
				}
			}
		})
	}
	cleaner := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{LockWait: time.Second}))
	_, err := cleaner.log.Prune(t.Context(), PruneOptions{Group: "g", OlderThan: month})
	wantError(t, "Prune", err, nil)
	stop()
	wg.Wait()
	n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_timestamp < UTC_TIMESTAMP(6) - INTERVAL 1 DAY")
	if n != 0 {
		t.Errorf("%d old rows are left", n)
	}
}

func TestPruneUsesIndexesAndSortsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.manySuccesses("t", 4000, month+time.Hour)
	w.manySuccesses("young", 2000, time.Hour)
	// of an empty table every plan costs the same
	w.exec("INSERT INTO consumer_log_event (group_name, msg_tag, msg_key, `at`, `to`, attempt, replays) " +
		"SELECT group_name, msg_tag, msg_key, consumer_timestamp, 1, 1, 0 FROM consumer_log")
	w.exec("ANALYZE TABLE consumer_log, consumer_log_event")
	old := &oldRow{Identity{"g", "t", "t-00500"}, time.Now().Add(-month - 2*time.Hour).UnixMicro()}
	before := time.Now().Add(-month).UnixMicro()
	for name, after := range map[string]*oldRow{"first page": nil, "later page": old} {
		s := w.log.pruneText(Success, before, after)
		for _, line := range w.explain(s.String(), s.args...) {
			if line["key"] != "by_status" || line["type"] != "range" || strings.Contains(line["Extra"], "filesort") {
				t.Errorf("%s: %v", name, line)
			}
		}
	}
	batch := make([]oldRow, pruneRows)
	for i := range batch {
		batch[i].Identity = Identity{"g", "t", fmt.Sprintf("t-%05d", i)}
	}
	for name, c := range map[string]struct {
		s    statement
		keys []string // of the tables in turn
	}{
		"delete":             {w.log.deleteText(Success, before, batch, false), []string{"PRIMARY"}},
		"delete with events": {w.log.deleteText(Success, before, batch, true), []string{"PRIMARY", "by_identity"}},
		"count events":       {w.log.storyText(batch), []string{"by_identity"}},
	} {
		plan := w.explain(c.s.String(), c.s.args...)
		if len(plan) != len(c.keys) {
			t.Fatalf("%s: plan %v", name, plan)
		}
		for i, line := range plan {
			if line["key"] != c.keys[i] || line["type"] != "range" && line["type"] != "ref" {
				t.Errorf("%s: %v", name, line)
			}
		}
	}
}

// explain is the plan of a statement, a line per table.
func (w *world) explain(text string, args ...any) (plan []map[string]string) {
	w.t.Helper()
	plan, err := list(w.t.Context(), w.pool, sqlOf(stack.Explain+text, args...), func(rows *sql.Rows) (
		map[string]string, error,
	) {
		columns, err := rows.Columns()
		if err != nil {
			return nil, err
		}
		values := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		err = rows.Scan(into...)
		line := map[string]string{}
		for i, c := range columns {
			line[c] = values[i].String
		}
		return line, err
	})
	wantError(w.t, "EXPLAIN", err, nil)
	return plan
}
