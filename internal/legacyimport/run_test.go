package legacyimport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given the table as the literature has it, when it is taken over, then what it calls success is success, what it left
// open is dead with all that is known of it, and other groups are left alone. What is in success for longer than the
// log keeps it is counted.
func TestAClassicTableIsTakenOver(t *testing.T) {
	w := newWorld(t, classicTable)
	w.old("done", 1)
	w.old("failed", 2)
	w.old("going on", 0)
	w.exec("INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, consumer_status) VALUES " +
		"('other', 't', 'k', 1)")
	w.old("done too", 1)
	w.old("young", 1)
	w.exec("UPDATE trade_mq_consumer_log SET consumer_timestamp = UTC_TIMESTAMP() WHERE msg_key = 'young'")
	w.o.Retention = 4 * time.Hour
	r := w.run()
	w.want("the pass", r, map[Kind]int{Success: 3, Open: 2, OtherName: 1, Outlived: 2})
	assert.That(t, r.Finished && !r.Resumed && r.Rows == 6 && r.Chosen() == 5 && r.Contradictions() == 0, "report: %+v", r)
	names := fmt.Sprint(r.Names)
	assert.Is(t, names, "[{order_orderTopic_cancel_group order_cancel stock-rollback stock.rollback 5} {other t   1}]",
		"names")
	sum := sha256.Sum256([]byte(bodyOf("done")))
	at := time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)
	row := w.read("done")
	assert.That(t, row.Status == dedup.Success && row.Attempts == 1 && row.At.Equal(at) &&
		string(row.BodyHash) == string(sum[:]) && row.Body == nil && row.MessageID == "0A" && row.Remark == "" &&
		row.TakenOver(), "done: %+v", row)
	row = w.read("failed")
	assert.That(t, row.Status == dedup.Dead && row.Reason == dedup.ReasonEffectUnknown &&
		string(row.Body) == bodyOf("failed") && string(row.Properties) == `{"type":"stock.rollback"}` &&
		strings.HasSuffix(row.Remark, "trade_mq_consumer_log left it open: status 2, failed, tried 1 times, at "+
			"2026-11-01T10:00:00Z: last error"), "failed: %+v", row)
	row = w.read("going on")
	assert.That(t, row.Status == dedup.Dead && strings.Contains(row.Remark, "status 0, in progress"), "going on: %+v", row)
}

// Given passes beside a consumer that works on, when later passes run, then they bring what it has done since, and
// leave alone what anybody of ours has moved.
func TestALaterPassBringsWhatChangedSince(t *testing.T) {
	w := newWorld(t, classicTable)
	for _, key := range []string{"finished", "retried", "same", "discarded", "replayed", "replayed, and done there"} {
		w.old(key, 0)
	}
	w.old("went back", 1)
	w.want("the first pass", w.run(), map[Kind]int{Success: 1, Open: 6})
	w.want("a second one", w.run(), map[Kind]int{There: 7})

	w.old("finished", 1)
	w.old("retried", 2)
	w.old("new", 1)
	w.old("new and open", 0)
	w.old("went back", 2)
	w.old("discarded", 1)
	w.old("replayed, and done there", 1)
	discarded := w.read("discarded")
	entry := dedup.Entry{Identity: discarded.Identity}
	require.OK(t, w.records.Discard(t.Context(), discarded, entry, "ann", "x"))
	for _, key := range []string{"replayed", "replayed, and done there"} {
		row := w.read(key)
		require.Get(w.records.Reopen(t.Context(), row, dedup.Entry{Identity: row.Identity},
			dedup.ReplayNote{By: "ann", Token: "replay/1"}))(t)
	}
	third := map[Kind]int{Success: 1, Open: 1, Settled: 1, Renewed: 1, There: 1, Ours: 2, UnderWay: 1, WentBack: 1}
	w.o.DryRun = true
	w.want("a dry run", w.run(), third)
	w.o.DryRun = false
	r := w.run()
	w.want("the third pass", r, third)
	assert.That(t, r.Contradictions() == 2 && len(r.Named) == 2, "named: %+v", r.Named)
	for key, want := range map[string]dedup.Version{
		"finished": {Status: dedup.Success, Attempts: 2}, "retried": {Status: dedup.Dead, Attempts: 2},
		"same": {Status: dedup.Dead, Attempts: 1}, "new": {Status: dedup.Success, Attempts: 1},
		"new and open": {Status: dedup.Dead, Attempts: 1}, "went back": {Status: dedup.Success, Attempts: 1},
		"discarded": {Status: dedup.Discarded, Attempts: 1}, "replayed": {Status: dedup.Failed, Replays: 1},
		"replayed, and done there": {Status: dedup.Failed, Replays: 1},
	} {
		got := w.read(key).Version
		want.Owner = got.Owner
		assert.Is(t, got, want, "%s", key)
	}
	assert.Has(t, w.read("retried").Remark, "status 2, failed, tried 2 times", "remark")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log_event WHERE msg_key = 'finished' AND `from` = 3 "+
		"AND `to` = 1 AND `by` = 'ann'"), 1, "lines of the story of what was finished")
	// what rollbackd has applied itself
	row := w.read("replayed")
	w.exec("UPDATE consumer_log SET consumer_status = 1 WHERE msg_key = ?", []byte(row.Key))
	w.old("replayed", 1)
	assert.Is(t, w.run().Counts[BothApplied], 1, "applied by both")
}

// Each odd row has a meaning of its own, and none stops a pass: testdata/odd.sql has the rows, testdata/odd.golden what
// became of them in a first and a second pass, and our rows. -update rewrites that.
func TestOddRowsHaveAMeaning(t *testing.T) {
	w := newWorld(t, "CREATE TABLE trade_mq_consumer_log (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY,"+
		" msg_id VARCHAR(400), group_name VARCHAR(300), msg_tag VARBINARY(300), msg_key VARCHAR(400) COLLATE utf8mb4_bin,"+
		" msg_body LONGTEXT, consumer_status VARCHAR(10), consumer_times BIGINT, consumer_timestamp DATETIME,"+
		" remark TEXT) ENGINE=InnoDB CHARSET=utf8mb4")
	w.o.Zone = time.FixedZone("east", 8*3600)
	w.exec(string(require.Get(os.ReadFile("testdata/odd.sql"))(t)))
	var got strings.Builder
	for range 2 {
		r := w.run()
		fmt.Fprintf(&got, "%d rows\n", r.Rows)
		for _, k := range Kinds {
			if n := r.Counts[k.Kind]; n > 0 {
				fmt.Fprintf(&got, "  %s: %d\n", k.Kind, n)
			}
		}
		for _, n := range r.Named {
			fmt.Fprintf(&got, "  named: %s %.20q %.20q: %s\n", n.Kind, n.Tag, n.Key, cmp.Or(n.Why, "no more is said"))
		}
	}
	for _, row := range w.texts("SELECT CONCAT_WS(' ', msg_key, 'is', consumer_status, reason, consumer_times, " +
		"IF(ABS(TIMESTAMPDIFF(HOUR, consumer_timestamp, UTC_TIMESTAMP())) < 2, 'now', consumer_timestamp), " +
		"LEFT(HEX(body_hash), 8), 'body', LENGTH(msg_body), 'id', LENGTH(msg_id), properties, " +
		"SUBSTRING(remark, LOCATE('trade_mq', remark), 120)) FROM consumer_log ORDER BY msg_key") {
		got.WriteString(row + "\n")
	}
	golden.Is(t, "testdata/odd.golden", got.String())
}

// Given a pass that is cut off after some pages, when it is run again, then it goes on behind them; a last pass begins
// at the first row.
func TestAPassThatWasCutOffGoesOn(t *testing.T) {
	w := newWorld(t, classicTable)
	w.fill(1000)
	w.o.page = 100
	cut := func(o Options, rows int) Report {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o.NoWait = false
		o.Progress = func(p Progress) {
			if p.Rows >= rows {
				cancel()
			}
		}
		r, err := Run(ctx, o)
		require.That(t, errors.Is(err, context.Canceled) && !r.Finished, "%v, %+v; want an end before the last row", err, r)
		return r
	}
	assert.Is(t, cut(w.o, 300).Rows, 300, "rows were read")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), 300, "rows")
	r := cut(w.o, 600)
	assert.That(t, r.Resumed && r.Rows == 600, "resumed %v, %d rows", r.Resumed, r.Rows)
	reads := 0
	w.o.Progress = func(Progress) { reads++ }
	r = w.run()
	w.want("the pass in three parts", r, map[Kind]int{Success: 900, Open: 100})
	assert.That(t, r.Resumed && r.Rows == 1000 && reads <= 5, "resumed %v, %d rows, %d pages", r.Resumed, r.Rows, reads)
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log_event"), 100, "events")
	cut(w.o, 300)
	other := w.o
	other.Tags = nil
	r, err := Run(t.Context(), other)
	assert.That(t, err == nil && !r.Resumed && r.Counts[Success] == 900, "%v, %+v; want a pass of its own", err, r)
	w.o.LastPass = true
	cut(w.o, 300)
	r = w.run()
	assert.That(t, !r.Resumed && r.Rows == 1000 && r.Counts[There] == 1000, "%+v; want a pass from the first row on", r)
}

// Given two migrations at once beside a consumer that writes, when they end, then one has gone through, and a last pass
// leaves each old row exactly as it is there.
func TestTwoAtOnceBesideTheOldConsumerDoNotHurt(t *testing.T) {
	w := newWorld(t, classicTable)
	w.fill(2000)
	w.o.page = 50
	writing, stop := context.WithCancel(t.Context())
	var consumer, both sync.WaitGroup
	consumer.Go(func() {
		for i := 0; writing.Err() == nil; i++ {
			w.exec("UPDATE trade_mq_consumer_log SET consumer_status = (consumer_status + 1) % 3, consumer_times = "+
				"consumer_times + 1 WHERE consumer_status <> 1 AND msg_key LIKE ?", fmt.Sprintf("%%%d0", i%10))
			w.exec("INSERT IGNORE INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times) "+
				"VALUES (?, 'order_cancel', ?, ?, 1)", oldGroup, fmt.Sprintf("%d-new", i*7919%1000), i%3)
		}
	})
	var finished, overtaken int
	var mu sync.Mutex
	for range 2 {
		both.Go(func() {
			for range 5 {
				_, err := Run(t.Context(), w.o)
				mu.Lock()
				switch {
				case err == nil:
					finished++
				case errors.Is(err, dedup.ErrOvertaken):
					overtaken++
				default:
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	both.Wait()
	stop()
	consumer.Wait()
	t.Logf("%d finished, %d overtaken", finished, overtaken)
	w.o.LastPass = true
	r := w.run()
	assert.That(t, finished != 0 && r.Contradictions() <= 0, "finished %d, last pass: %v", finished, r.Counts)
	const joined = "SELECT COUNT(*) FROM trade_mq_consumer_log o LEFT JOIN consumer_log n ON n.msg_key = " +
		"CAST(o.msg_key AS BINARY) WHERE NOT COALESCE(n.consumer_status = IF(o.consumer_status = 1, 1, 3) AND " +
		"n.consumer_times = o.consumer_times, FALSE)"
	assert.Is(t, w.number(joined), 0, "rows are not as they are in the old table")
	theirs := w.number("SELECT COUNT(*) FROM trade_mq_consumer_log")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log"), theirs, "old rows, of ours")
}

// Given a daemon at work on the new log, when a pass meets what it has done, at the same moment too, then nothing of
// that is overwritten, and what contradicts the old log is named.
func TestWhatADaemonDoesMeanwhileIsNotOverwritten(t *testing.T) {
	w := newWorld(t, classicTable)
	w.fill(2000)
	w.o.page = 100
	working, stop := context.WithCancel(t.Context())
	var daemon sync.WaitGroup
	applied := map[string]bool{}
	begun := make(chan struct{}) // closed when the first row is committed, or the daemon has ended
	daemon.Go(func() {
		first := sync.OnceFunc(func() { close(begun) })
		defer first()
		for i := 0; working.Err() == nil && i < 2000; i += 7 {
			key := fmt.Sprintf("2026%09d", i*1009%2000)
			entry := dedup.Entry{Identity: dedup.Identity{Group: group, Tag: "stock.rollback", Key: key}}
			tx, err := w.db.BeginTx(t.Context(), nil)
			if err == nil {
				err = w.records.InsertSuccess(t.Context(), tx, []dedup.Entry{entry})
			}
			if err == nil {
				err = tx.Commit()
			} else if tx != nil {
				_ = tx.Rollback()
			}
			switch {
			case err == nil:
				applied[key] = true
				first()
			case !errors.Is(err, dedup.ErrExists):
				t.Error(err)
			}
		}
	})
	<-begun
	for range 3 {
		w.run()
	}
	stop()
	daemon.Wait()
	r := w.run()
	require.That(t, len(applied) != 0, "the daemon applied nothing")
	n := r.Counts[BothApplied] + r.Counts[Ours]
	assert.That(t, n == len(applied) && r.Counts[There] == 2000-n, "%d applied by the daemon, %v", len(applied), r.Counts)
	for key := range applied {
		row := w.read(key)
		assert.That(t, row.Status == dedup.Success && row.Owner == "", "%s was overwritten: %+v", key, row)
	}
}

// Given answers to COMMIT that are lost, when a pass goes on, then it does nothing twice.
func TestALostAnswerIsLookedUp(t *testing.T) {
	t.Parallel()
	isCommit := func(b []byte) bool { return bytes.HasSuffix(b, []byte("COMMIT")) }
	type drop = func(*stack.TCPProxy, func([]byte) bool) <-chan struct{}
	for name, lose := range map[string]drop{
		"committed": (*stack.TCPProxy).DropReply, "not committed": (*stack.TCPProxy).DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, classicTable)
			w.fill(300)
			proxy := stack.Proxy(t, stack.Addr(t, w.dsn))
			far := openWorld(t, proxy.Through(w.dsn))
			far.o.page = 100
			sprung := lose(proxy, isCommit)
			far.want("the pass", far.run(), map[Kind]int{Success: 270, Open: 30})
			<-sprung
			assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log_event"), 30, "events")
		})
	}
}

// Given more bodies than a page may hold, when their rows are taken over, then pages end early, and none is left out.
func TestLargeBodiesTakeMorePages(t *testing.T) {
	w := newWorld(t, strings.Replace(classicTable, "msg_body VARCHAR(500)", "msg_body LONGTEXT", 1))
	w.fill(100)
	w.exec("UPDATE trade_mq_consumer_log SET consumer_status = 2, msg_body = REPEAT('x', 300000)")
	var read []int
	w.o.Progress = func(p Progress) { read = append(read, p.Rows) }
	w.want("the pass", w.run(), map[Kind]int{Open: 100, CutBody: 100, NoMessage: 100})
	assert.Is(t, fmt.Sprint(read), "[64 100]", "rows of pages")
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log WHERE LENGTH(msg_body) = ?", dedup.MaxBody), 100, "rows")
}

// Given many rows, when they are taken over, then each is read once and through the primary key, in transactions of at
// most a thousand rows; a later pass writes nothing, and a look that has no time sees only what is behind all.
func TestManyRowsAreReadOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes over 20,000 rows or, with ROLLBACKD_TEST_BIG, a million: too many for -short")
	}
	n := 20_000
	if os.Getenv("ROLLBACKD_TEST_BIG") != "" {
		n = 1_000_000
	}
	w := anotherWorld(t, classicTable)
	began := time.Now()
	w.fill(n)
	t.Logf("%d rows made in %v", n, time.Since(began))
	w.db.SetMaxOpenConns(1) // the counters are the session's
	read := func() (rows int) {
		t.Helper()
		for _, counter := range stack.RowsOf(t, w.db, "SHOW SESSION STATUS WHERE variable_name IN ('Handler_read_next', "+
			"'Handler_read_first', 'Handler_read_rnd_next')") {
			rows += require.Get(strconv.Atoi(counter["Value"]))(t)
		}
		return rows
	}
	before, began := read(), time.Now()
	r := w.run()
	t.Logf("%d rows taken over in %v", n, time.Since(began))
	w.want("the pass", r, map[Kind]int{Success: n - n/10, Open: n / 10})
	// each page begins a few ranges, and the log is looked up by key
	assert.AtMost(t, read()-before, n+n/2, "rows were read to take %d over", n)
	began = time.Now()
	w.o.LastPass = true
	r = w.run()
	t.Logf("a last pass that finds nothing new took %v", time.Since(began))
	w.want("the last pass", r, map[Kind]int{There: n})
	began = time.Now()
	assert.Is(t, len(w.doubts()), 0, "doubts")
	t.Logf("a look at all rows took %v", time.Since(began))
	d := require.Get(Doubts(t.Context(), w.records, w.db, group, 0))(t)
	assert.That(t, len(d) == 1 && !d[0].Sure && strings.Contains(d[0].Why, "too large"), "%v; want that nobody knows", d)
	w.old("9", 1)
	d = require.Get(Doubts(t.Context(), w.records, w.db, group, 0))(t)
	assert.That(t, len(d) == 1 && d[0].Sure, "%v; want the row behind all", d)
	assert.Is(t, w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1"), n-n/10, "rows in success")
}
