package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

const month = 30 * 24 * time.Hour

// old are the options of the tests.
var monthOld = PruneOptions{Group: "g", OlderThan: month}

// aged are n rows of one tag and one age, "TAG-00000" and so on.
func aged(tag string, n int, status Status, age time.Duration) (rows []Row) {
	for i := range n {
		rows = append(rows, Row{Identity: Identity{"g", tag, fmt.Sprintf("%s-%05d", tag, i)},
			Version: Version{Status: status, Attempts: 1}, Age: age})
	}
	return rows
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
	w := newWorld(t)
	// given rows of all kinds, and more than a page of one moment, under several tags
	var stay []string
	for _, status := range Statuses() {
		for _, age := range []time.Duration{month - time.Minute, month + time.Minute} {
			for _, group := range []string{"g", "other"} {
				k := Identity{group, "t", fmt.Sprintf("%v %v", status, age)}
				w.put(Row{Identity: k, Version: Version{Status: status}, Age: age})
				if group == "other" || age < month || status != Success && status != Discarded {
					stay = append(stay, k.String())
				}
			}
		}
	}
	slices.Sort(stay)
	w.tell("TRUE")
	w.put(aged("many", 2*pruneRows+1, Success, month+time.Hour)...)
	w.put(aged("more", 7, Success, month+time.Hour)...)
	w.put(aged("young", 7, Success, time.Hour)...)
	want := map[Status]int{Success: 2*pruneRows + 1 + 7 + 1, Discarded: 1}

	// when it is only counted, then nothing goes
	all := w.number("SELECT COUNT(*) FROM consumer_log")
	before := require.Get(w.log.CountPrunable(t.Context(), monthOld))(t)
	if diff := cmp.Diff(want, counts(before)); diff != "" || w.number("SELECT COUNT(*) FROM consumer_log") != all {
		t.Errorf("counted, or deleted (-want +got):\n%s", diff)
	}

	// when it is done, then exactly that has gone, with its events
	var progress []int
	o := monthOld
	o.Progress = func(rows int) { progress = append(progress, rows) }
	var late []time.Duration
	o.Late = func(by time.Duration) { late = append(late, by) }
	pruned := require.Get(w.log.Prune(t.Context(), o))(t)
	diff := cmp.Diff(before, pruned)
	assert.That(t, diff == "", "pruned (-counted +pruned):\n%s", diff)
	if n := len(progress); n < 3 || progress[n-1] != want[Success]+want[Discarded] {
		t.Errorf("progress %v, want it to end with all", progress)
	}
	assert.That(t, len(late) == len(progress) && late[0] >= time.Hour && late[len(late)-1] <= time.Hour,
		"late by %v, want an hour at first and a minute at last", late)
	for _, table := range []string{"consumer_log", "consumer_log_event"} {
		query := sqlOf("SELECT group_name, msg_tag, msg_key FROM " + table + " WHERE msg_tag = 't'")
		left, err := list(t.Context(), w.pool, query, func(rows *sql.Rows) (string, error) {
			var k Identity
			err := rows.Scan(&k.Group, &k.Tag, &k.Key)
			return k.String(), err
		})
		slices.Sort(left)
		diff := cmp.Diff(stay, left)
		assert.That(t, err == nil && diff == "", "left in %s (-want +got): %v\n%s", table, err, diff)
	}
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_tag <> 't'"), 7, "rows are left")
	for _, o := range []PruneOptions{{}, {Group: "g"}, {Group: "g", OlderThan: -time.Hour}, {OlderThan: time.Hour}} {
		_, err := w.log.Prune(t.Context(), o)
		assert.That(t, err != nil, "Prune with %+v must be refused", o)
	}
}

// A discarded row that is old may be reopened between the moment when Prune reads its key and the one when it deletes.
func TestPruneLeavesARowThatMovedMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.put(aged("t", 3, Discarded, month+time.Hour)...)
	w.tell("TRUE")
	before := require.Get(w.log.pruneBefore(t.Context(), monthOld))(t)
	p := pruner{w.log, monthOld, before, Pruned{Status: Discarded}, pace{}}
	page, err := p.page(t.Context(), nil)
	require.That(t, err == nil && len(page) == 3, "page = %v, %v", page, err)
	moves, again, stays := key("t-00000"), key("t-00001"), key("t-00002")
	for _, k := range []Identity{moves, again} {
		require.Get(w.log.Reopen(t.Context(), w.read(k), entryOf(k), ReplayNote{By: "me", Token: k.Key, Discarded: true}))(t)
	}
	assert.OK(t, w.log.Discard(t.Context(), w.read(again), entryOf(again), "me", "again"))
	assert.OK(t, p.delete(t.Context(), page))
	for k, want := range map[Identity]Status{moves: Failed, again: Discarded, stays: Absent} {
		assert.Is(t, w.read(k).Status, want, "%v", k)
	}
	if n := len(w.events(moves)); n != 2 || p.pruned.Rows > 1 {
		t.Errorf("%d events of the reopened row, want 2; %d rows counted, want 1", n, p.pruned.Rows)
	}
}

// Given batches that take 20 ms each, then a pass rests four times as long where rows came slowly, and not at all where
// they came faster than they go, until it has made up for it.
func TestPruneRestsOnlyWhileItKeepsPaceWithWhatCame(t *testing.T) {
	t.Parallel()
	const took = 20 * time.Millisecond
	var p pace
	for _, step := range []struct {
		name    string
		batches int
		span    time.Duration // in which the rows of a batch came
		worked  float64       // part of the time
	}{
		{"slowly: 100 a second", 1000, 5 * time.Second, 0.2},
		{"a burst, after what was quiet", 3000, 0, 0.2},
		{"the same without an end", 20_000, 0, 1},
		{"10,000 a second, with all that to make up for", 20_000, 50 * time.Millisecond, 1},
		{"slowly again, with it made up for", 1000, 5 * time.Second, 0.2},
		{"10,000 a second, after what was quiet", 4000, 50 * time.Millisecond, 0.2},
		{"the same for longer", 20_000, 50 * time.Millisecond, 0.8},
		{"30,000 a second", 20_000, 17 * time.Millisecond, 1},
	} {
		var rested time.Duration
		for range step.batches {
			rested += p.rest(took, step.span)
		}
		all := time.Duration(step.batches) * took
		if got := float64(all) / float64(all+rested); got < step.worked-0.05 || got > step.worked+0.05 {
			t.Errorf("%s: it worked %.2f of the time, want %v", step.name, got, step.worked)
		}
	}
}

func TestPruneWaitsForSomebodyElsesLockAndTriesAgain(t *testing.T) {
	w := newWorld(t)
	rows := aged("t", 20, Success, month+time.Hour)
	w.put(rows...)
	cleaner := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{LockWait: time.Second}))
	// given a worker that holds one of the rows, as a late duplicate does until it rolls back
	tx := require.Get(w.pool.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback()
	require.Get(tx.Exec("SELECT 1 FROM consumer_log"+keyIs+" FOR UPDATE", keyArgs(rows[7].Identity)...))(t)
	done := make(chan error, 1)
	go func() {
		_, err := cleaner.log.Prune(t.Context(), monthOld)
		done <- err
	}()
	for _, waits := range []bool{true, false} {
		poll.Until(t, "the cleaner waits for the lock, and gives up once", func() bool {
			return waits == (w.number("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE "+
				"'DELETE log%'") > 0)
		})
	}
	require.Get(tx.Exec("SELECT 1 FROM consumer_log"))(t)
	assert.OK(t, tx.Rollback())
	assert.OK(t, <-done)
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), 0, "rows are left")
}

// Late duplicates and new messages come in while old rows go: whatever waits or loses a deadlock is the cleaner, never
// a message.
func TestNoMessageLosesADeadlockWhileRowsArePruned(t *testing.T) {
	w := newWorld(t)
	rows := aged("t", 6000, Success, month+time.Hour)
	w.put(rows...)
	w.put(aged("t-00300 discarded", 60, Discarded, month+time.Hour)...)
	w.tell("consumer_status = 4")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; ctx.Err() == nil; i += 4 {
				entries := []Entry{{Identity: rows[i*37%len(rows)].Identity}}
				for j := range 50 { // new ones, each batch around an old one
					entries = append(entries, Entry{
						Identity: Identity{"g", "t", fmt.Sprintf("%s +%d %d", rows[(i*50+j)%len(rows)].Key, worker, i)},
					})
				}
				err := w.insertSuccess(entries...)
				if err != nil && !errors.Is(err, ErrExists) {
					t.Errorf("a worker met %v", err)
					return
				}
			}
		})
	}
	cleaner := worldOf(t, w.dsn, openWith(t, w.dsn, OpenOptions{LockWait: time.Second}))
	require.Get(cleaner.log.Prune(t.Context(), monthOld))(t)
	stop()
	wg.Wait()
	n := w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_timestamp < UTC_TIMESTAMP(6) - INTERVAL 1 DAY")
	assert.That(t, n == 0, "%d old rows are left", n)
}
