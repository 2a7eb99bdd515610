package dedup

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/must"
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
	want := []Pruned{{Status: Success, Rows: 2*pruneRows + 1 + 7 + 1}, {Status: Discarded, Rows: 1}}

	// when it is only counted, then nothing goes
	all := w.number("SELECT COUNT(*) FROM consumer_log")
	before := require.Get(w.log.CountPrunable(t.Context(), monthOld))(t)
	diff := cmp.Diff(want, before, cmpopts.IgnoreFields(Pruned{}, "Oldest"))
	assert.That(t, diff == "" && w.number("SELECT COUNT(*) FROM consumer_log") == all, "counted, or deleted:\n%s", diff)

	// when it is done, then exactly that has gone, with its events
	var progress []int
	o := monthOld
	o.Progress = func(rows int) { progress = append(progress, rows) }
	var late []time.Duration
	o.Late = func(by time.Duration) { late = append(late, by) }
	pruned := require.Get(w.log.Prune(t.Context(), o))(t)
	diff = cmp.Diff(before, pruned)
	assert.That(t, diff == "", "pruned (-counted +pruned):\n%s", diff)
	n := len(progress)
	assert.That(t, n >= 3 && progress[n-1] == want[0].Rows+want[1].Rows, "progress %v, want it to end with all", progress)
	assert.That(t, len(late) == len(progress) && late[0] >= time.Hour && late[len(late)-1] <= time.Hour,
		"late by %v, want an hour at first and a minute at last", late)
	for _, table := range []string{"consumer_log", "consumer_log_event"} {
		query := sqlOf("SELECT group_name, msg_tag, msg_key FROM " + table + " WHERE msg_tag = 't'")
		keys, err := list(t.Context(), w.pool, query, func(k *Identity) []any { return []any{&k.Group, &k.Tag, &k.Key} })
		left := mapped(keys, Identity.String)
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

// Given old rows of two tags by turns, then a page of them takes a statement for each tag.
func TestPruneTakesAStatementForEachTag(t *testing.T) {
	w := newWorld(t)
	rows := slices.Concat(aged("a", 9, Success, 0), aged("b", 9, Success, 0))
	for i := range rows {
		rows[i].Age = month + time.Duration(i%9+1)*time.Minute
	}
	w.put(rows...)
	cleaner := worldOf(t, w.dsn, OpenOptions{MaxOpen: 1})
	require.Get(cleaner.log.Prune(t.Context(), monthOld))(t)
	said := stack.RowsOf(t, cleaner.pool, "SHOW SESSION STATUS LIKE 'Com_delete_multi'")
	assert.Is(t, said[0]["Value"], "2", "statements")
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
	cleaner := worldOf(t, w.dsn, OpenOptions{LockWait: time.Second, MaxOpen: 7})
	assert.Is(t, cleaner.number("SELECT @@innodb_lock_wait_timeout"), 1, "a lock is waited for s")
	assert.Is(t, cleaner.pool.Stats().MaxOpenConnections, 7, "connections at most")
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

// letterLimit is a hundred letters an hour, and a pause of half an hour.
var letterLimit = LetterLimit{Group: "g", Queue: "q", Most: 100, Window: time.Hour, Pause: 30 * time.Minute}

func TestOfManyWhoReserveLettersAtOnceTheLimitIsShared(t *testing.T) {
	w := newWorld(t)
	var sum atomic.Int64
	must.Side(8, func(int) {
		for range 10 {
			got, _, err := w.log.ReserveLetters(t.Context(), letterLimit, 7)
			assert.OK(t, err)
			sum.Add(int64(got))
		}
	})
	assert.Is(t, sum.Load(), 100, "letters were given in all")
}

// Given a limit of 100 letters an hour, when letters are asked for as time goes by, then a window ends with its hour,
// or with its pause once more was asked for, however old it becomes; as many letters as messages were applied are
// within the limit.
func TestAWindowOfLettersBeginsAnewWhenItIsOverOrItsPause(t *testing.T) {
	w := newWorld(t)
	limit := letterLimit
	for i, s := range []struct {
		after    time.Duration // negative: the clock was set back
		do       func()
		ask, get int
		holds    time.Duration
	}{
		{0, nil, 60, 60, 0},
		{59 * time.Minute, nil, 40, 40, 0},
		{time.Minute, nil, 100, 100, 0},
		{0, nil, 1, 0, 30 * time.Minute},
		{20 * time.Minute, func() { limit.Window = time.Minute }, 1, 0, 10 * time.Minute},
		{10 * time.Minute, nil, 101, 100, 30 * time.Minute},
		{-48 * time.Hour, nil, 1, 1, 0},
		{48 * time.Hour, func() { limit = letterLimit; w.put(aged("applied", 300, Success, 0)...) }, 250, 250, 0},
		{0, nil, 100, 50, 30 * time.Minute},
		{0, func() { w.put(aged("more", 100, Success, 0)...) }, 50, 50, 0}, // while it holds
		{2 * time.Hour, func() { // what was applied before the window counts no more
			w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 2 HOUR")
		}, 101, 100, 30 * time.Minute},
		{0, func() { limit.Queue = "another" }, 100, 100, 0},
	} {
		if s.after != 0 { // its window goes into the past, as if so much time had gone by
			var n letterNote
			name := w.log.noteName("letters", limit.Group, limit.Queue)
			stored := require.First(w.log.readNote(t.Context(), w.pool, name, &n))(t)
			n.Since -= s.after.Microseconds()
			if n.Until > 0 {
				n.Until -= s.after.Microseconds()
			}
			require.Get(w.log.writeNote(t.Context(), w.pool, name, stored, n))(t)
		}
		if s.do != nil {
			s.do()
		}
		got, holds, err := w.log.ReserveLetters(t.Context(), limit, s.ask)
		assert.That(t, err == nil && got == s.get && holds <= s.holds && holds >= s.holds-time.Minute,
			"step %d: of %d letters it got %d, for %v (%v); want %d, for %v", i, s.ask, got, holds, err, s.get, s.holds)
	}
}

func TestAPauseIsReplacedOrEndedOnlyByWhoHasSeenIt(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("<é", 500)
	set := func(id string, lasts time.Duration, instead string) error {
		_, err := w.log.SetPause(t.Context(), w.pool, "g", "q", Pause{ID: id, By: long, Why: long}, lasts, instead)
		return err
	}
	end := func(id string) error {
		_, err := w.log.EndPause(t.Context(), w.pool, "g", "q", id)
		return err
	}
	stands := func(what string, err, want error, id string) {
		t.Helper()
		assert.Error(t, err, want, what)
		p, err := w.log.Paused(t.Context(), "g", "q")
		assert.That(t, err == nil && p.ID == id && (p.Left > 0) == (id != ""), "%s: %+v, %v; want %q", what, p, err, id)
	}
	stands("paused", set("one", time.Hour, ""), nil, "one")
	stands("replaced by who had seen none", set("two", time.Hour, "none"), ErrPaused, "one")
	stands("ended by who had seen none", end("none"), ErrNotPaused, "one")
	stands("replaced", set("two", time.Hour, "one"), nil, "two")
	stands("ended", end("two"), nil, "")
	stands("over at once", set("three", time.Microsecond, ""), nil, "")
	stands("anew", set("four", time.Hour, ""), nil, "four")
	p, err := w.log.Paused(t.Context(), "g", "another")
	assert.That(t, err == nil && p.Left <= 0, "another queue is paused: %+v, %v", p, err)
}

// The statement and the judgement of a row must agree, else letters are looked for in vain or never.
func TestTheRowsThatAreDueAreCounted(t *testing.T) {
	w := newWorld(t)
	c := Cooling{Reasons: []Reason{"exhausted", "crashed"}, After: time.Minute, Most: 24 * time.Hour, MaxReplays: 3}
	for i, r := range []struct {
		due     bool
		status  Status
		reason  Reason
		replays int
		age     time.Duration
		remark  string
	}{
		{true, Dead, "exhausted", 0, 61 * time.Second, ""},
		{true, Dead, "crashed", 2, 5 * time.Minute, "no"},
		{true, Dead, "crashed", 11, 25 * time.Hour, "no"}, // to be parked, as the next one
		{true, Dead, "crashed", 40, 25 * time.Hour, "no"},
		{true, Dead, "exhausted", 0, -40 * 24 * time.Hour, "back"}, // the database's clock has gone back
		{false, Dead, "exhausted", 0, 30 * time.Second, ""},
		{false, Dead, "exhausted", 0, -30 * time.Second, ""},
		{false, Dead, "exhausted", 2, -3 * time.Minute, ""},
		{false, Dead, "exhausted", 1, 90 * time.Second, ""},
		{false, Dead, "exhausted", 3, 25 * time.Hour, parked + "after 3 replays"},
		{false, Dead, "permanent", 0, time.Hour, ""},
		{false, Failed, "exhausted", 0, time.Hour, ""},
	} {
		k := key(fmt.Sprint(i))
		w.put(Row{Identity: k, Version: Version{Status: r.status, Replays: r.replays}, Reason: r.reason, Remark: r.remark,
			Age: r.age})
		assert.Is(t, c.Due(w.read(k)), r.due, "%+v: due", r)
	}
	w.put(Row{Identity: Identity{"other", "t", "k"}, Version: Version{Status: Dead}, Reason: "exhausted", Age: time.Hour})
	for _, q := range []struct{ replays, limit, want int }{{3, 100, 5}, {3, 2, 2}, {0, 100, 6}} {
		c.MaxReplays = q.replays
		assert.Is(t, require.Get(w.log.CountDue(t.Context(), "g", c, q.limit))(t), q.want, "%+v: due are", q)
	}
	c.After = 25 * time.Hour // longer than the bound: a pause of its own, which does not grow
	assert.Is(t, c.Pause(3), c.After, "the pause")
}

func TestAClockThatJumpsIsNotBelieved(t *testing.T) {
	t.Parallel()
	made := time.Now()
	for name, readings := range map[string][]struct {
		steady         time.Duration // since the process began
		database, here time.Duration // what the clocks are ahead of it
		agree          bool
	}{
		"in step, and a little apart": {{0, 0, 0, true}, {time.Minute, 50 * time.Second, 0, true}},
		"the database's jumps and comes back": {
			{0, 0, 0, true}, {time.Second, 960 * time.Hour, 0, false}, {11 * time.Second, 0, 0, true},
		},
		"the process's jumps and comes back": {
			{0, 0, 0, true}, {time.Second, 0, -2 * time.Minute, false}, {11 * time.Second, 0, 0, true},
		},
		"both jump and come back": {
			{0, 0, 0, true}, {time.Second, 960 * time.Hour, 960 * time.Hour, false}, {11 * time.Second, 0, 0, true},
			{time.Minute, 960 * time.Hour, 960 * time.Hour, false},
			{time.Hour + 30*time.Second, 960 * time.Hour, 960 * time.Hour, false},
		},
		"the machine slept": {
			{time.Minute, 0, 0, true}, {2 * time.Minute, 8 * time.Hour, 8 * time.Hour, false},
			{time.Hour, 8 * time.Hour, 8 * time.Hour, false}, {2 * time.Hour, 8 * time.Hour, 8 * time.Hour, true},
			{3 * time.Hour, 8 * time.Hour, 8 * time.Hour, true}, {4 * time.Hour, 0, 0, false},
		},
		"the process's was set right after it began": {
			{0, time.Hour, 0, false}, {time.Minute, time.Hour, time.Hour, true}, {time.Hour, time.Hour, time.Hour, true},
		},
	} {
		c := &clocks{made: made}
		for i, r := range readings {
			at := made.Round(0).Add(r.steady)
			err := c.judge(at.Add(r.database), at.Add(r.here), 0, r.steady)
			assert.That(t, r.agree == (err == nil) && (r.agree || errors.Is(err, ErrClocks)),
				"%s: reading %d: %v, want agreement %v", name, i, err, r.agree)
		}
	}
}

// Given several daemons that add to the same minutes, then counts add up, of the messages that wait the largest number
// stays as long as anybody knows one, and each group, queue and minute has its own; a minute of nobody is not there.
func TestMinutesAddUp(t *testing.T) {
	w := newWorld(t)
	add := func(group, queue string, ago time.Duration, m Minute) {
		t.Helper()
		require.OK(t, w.log.AddMinute(t.Context(), group, queue, ago, m))
	}
	known := func(n int64) sql.Null[int64] { return sql.Null[int64]{V: n, Valid: true} }
	one := Minute{Applied: 5, Retried: 2, Dead: map[Reason]int64{ReasonCrashed: 1}, Waiting: known(7)}
	one.Lag[0], one.Lag[lagBuckets-1] = 4, 1
	other := Minute{Applied: 3, Dead: map[Reason]int64{ReasonCrashed: 2, ReasonConflict: 1}, Waiting: known(9)}
	other.Lag[0] = 3
	add("g", "q", 2*time.Hour, one)
	add("g", "q", 2*time.Hour, other)
	add("g", "q", 2*time.Hour, Minute{Retrying: known(1)})
	add("g", "q", 0, Minute{})
	add("g", "other", 2*time.Hour, Minute{Applied: 100})
	add("h", "q", 2*time.Hour, Minute{Applied: 100})

	all := require.Get(w.log.Minutes(t.Context(), "g", "q", 3*time.Hour))(t)
	assert.Is(t, len(all), 2, "minutes")
	want := Minute{At: all[0].At, Applied: 8, Retried: 2, Dead: map[Reason]int64{ReasonCrashed: 3, ReasonConflict: 1},
		Waiting: known(9), Retrying: known(1)}
	want.Lag[0], want.Lag[lagBuckets-1] = 7, 1
	d := cmp.Diff([]Minute{want, {At: all[1].At, Dead: map[Reason]int64{}}}, all)
	assert.That(t, d == "", "the minutes (-want +got):\n%s", d)
	apart := all[1].At.Sub(all[0].At)
	assert.That(t, apart == 2*time.Hour || apart == 2*time.Hour+time.Minute, "they are %v apart", apart)
	assert.Is(t, len(require.Get(w.log.Minutes(t.Context(), "g", "q", time.Hour))(t)), 1, "minutes of the last hour")
	assert.Is(t, len(LagBounds())+1, lagBuckets, "buckets of the lag")
}
