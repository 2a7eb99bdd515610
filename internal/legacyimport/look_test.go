package legacyimport

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

func TestMain(m *testing.M) { stack.Main(m) }

// classicTable is the table as the literature has it.
const classicTable = "CREATE TABLE trade_mq_consumer_log (" +
	" msg_id VARCHAR(50) DEFAULT NULL, group_name VARCHAR(100) NOT NULL, msg_tag VARCHAR(100) NOT NULL," +
	" msg_key VARCHAR(100) NOT NULL, msg_body VARCHAR(500) DEFAULT NULL, consumer_status INT(1) DEFAULT NULL," +
	" consumer_times INT(1) DEFAULT NULL, consumer_timestamp TIMESTAMP NULL DEFAULT NULL," +
	" remark VARCHAR(500) DEFAULT NULL, PRIMARY KEY (group_name, msg_tag, msg_key)) ENGINE=InnoDB CHARSET=utf8"

const (
	group    = "stock-rollback"
	oldGroup = "order_orderTopic_cancel_group"
)

// world is an empty log beside an old table.
type world struct {
	t       testing.TB
	dsn     string
	db      *sql.DB
	records *dedup.Log
	o       Options
}

// newWorld has its test run beside others.
func newWorld(t *testing.T, create string) *world {
	t.Helper()
	t.Parallel()
	return anotherWorld(t, create)
}

func anotherWorld(t *testing.T, create string) *world {
	t.Helper()
	w := openWorld(t, stack.MySQL(t))
	stack.Tables(t, w.dsn, "log", func() {
		db := require.First(dedup.Open(t.Context(), w.dsn, dedup.OpenOptions{}))(t)
		defer require.Get(db.DB())(t).Close()
		require.OK(t, dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Table: "consumer_log"}))
	})
	if create != "" {
		w.exec(create)
	}
	return w
}

// openWorld is a world as it stands, perhaps seen through a proxy.
func openWorld(t testing.TB, dsn string) *world {
	t.Helper()
	db := require.First(dedup.Open(t.Context(), dsn, dedup.OpenOptions{}))(t)
	w := &world{t: t, dsn: dsn}
	w.db = require.Get(db.DB())(t)
	t.Cleanup(func() { w.db.Close() })
	w.records = require.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Minute}, MaxAttempts: MaxTimes,
	}))(t)
	w.o = Options{
		Records: w.records, DB: w.db, From: "trade_mq_consumer_log", Group: group, NoWait: true, By: "ann",
		quiet:  time.Millisecond,
		Groups: map[string]string{oldGroup: group}, Tags: map[string]string{"order_cancel": "stock.rollback"},
		Remake: func(id dedup.Identity, _ []byte, _ string) []byte { return []byte(`{"type":"` + id.Tag + `"}`) },
	}
	return w
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, text, args...)
}

func (w *world) number(text string, args ...any) int {
	w.t.Helper()
	return stack.Number(w.t, w.db, text, args...)
}

// texts are the rows of a query of one column.
func (w *world) texts(query string) (all []string) {
	w.t.Helper()
	for _, row := range stack.RowsOf(w.t, w.db, query) {
		all = append(all, slices.Collect(maps.Values(row))...)
	}
	return all
}

// old writes a row of the old consumer's, tried once.
func (w *world) old(key string, status any) {
	w.t.Helper()
	w.exec("INSERT INTO trade_mq_consumer_log (msg_id, group_name, msg_tag, msg_key, msg_body, consumer_status, "+
		"consumer_times, consumer_timestamp, remark) VALUES ('0A', ?, 'order_cancel', ?, ?, ?, 1, '2026-11-01 10:00:00', "+
		"'last error') ON DUPLICATE KEY UPDATE consumer_status = VALUES(consumer_status), consumer_times = "+
		"consumer_times + 1", oldGroup, key, bodyOf(key), status)
}

func bodyOf(key string) string { return `{"order_sn":"` + key + `"}` }

// fill writes n rows fast, of which each tenth is left open.
func (w *world) fill(n int) {
	w.t.Helper()
	values := make([]string, n)
	for i := range values {
		status := 1
		if i%10 == 0 {
			status = i / 10 % 2 * 2
		}
		values[i] = fmt.Sprintf("('%s','order_cancel','2026%09d','{\"order_sn\":\"2026%09d\",\"items\":[{\"sku_id\":1001,"+
			"\"quantity\":2}]}',%d,1,'2026-11-01 10:00:00')", oldGroup, i, i, status)
	}
	for some := range slices.Chunk(values, 10_000) {
		w.exec("INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, msg_body, consumer_status, " +
			"consumer_times, consumer_timestamp) VALUES " + strings.Join(some, ","))
	}
}

func (w *world) run() Report {
	w.t.Helper()
	return require.Get(Run(w.t.Context(), w.o))(w.t)
}

func (w *world) read(key string) dedup.Row {
	w.t.Helper()
	return require.Get(w.records.Read(w.t.Context(), dedup.Identity{Group: group, Tag: "stock.rollback", Key: key}))(w.t)
}

// want compares the counts of a report; what is not named must be zero.
func (w *world) want(what string, r Report, want map[Kind]int) {
	w.t.Helper()
	for _, k := range slices.AppendSeq(slices.Collect(maps.Keys(want)), maps.Keys(r.Counts)) {
		assert.Is(w.t, r.Counts[k], want[k], "%s: of %s", what, k)
	}
}

// doubts are what a daemon would be told of the old table.
func (w *world) doubts() []Doubt {
	w.t.Helper()
	return require.Get(Doubts(w.t.Context(), w.records, w.db, group, time.Minute))(w.t)
}

// Given a last pass that is in the middle of the table, when somebody writes to it, then it was no last pass, with the
// counts and the row; what is of another group's is nobody's business.
func TestALastPassNoticesWhoeverStillWrites(t *testing.T) {
	t.Parallel()
	const update = "UPDATE trade_mq_consumer_log SET "
	insert := func(group, key string) string {
		return fmt.Sprintf("INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, consumer_status) VALUES "+
			"('%s', 'order_cancel', '%s', 1)", group, key)
	}
	for name, c := range map[string]struct {
		writes string
		late   int
		want   string // in the error
	}{
		"nobody":                          {},
		"behind the cursor, a new row":    {insert(oldGroup, "2026000000005-new"), 1, `"2026000000005-new"`},
		"ahead of the cursor, a new row":  {insert(oldGroup, "2026000000995-new"), 1, `"2026000000995-new"`},
		"behind all, a new row":           {insert(oldGroup, "9"), 1, "1000 rows before the pass and has 1001"},
		"behind the cursor, a success":    {update + "consumer_status = 1 WHERE msg_key = '2026000000010'", 1, "(status 1)"},
		"ahead of the cursor, an attempt": {update + "consumer_times = 2 WHERE msg_key = '2026000000990'", 1, `0990"`},
		"two rows, each from 0 to 1": {update + "consumer_status = 1 WHERE msg_key IN ('2026000000020', '2026000000040')", 2,
			"2 are new or changed"},
		"a time":          {update + "consumer_timestamp = NULL WHERE msg_key = '2026000000011'", 1, `"2026000000011"`},
		"a remark":        {update + "remark = 'x' WHERE msg_key = '2026000000011'", 1, `"2026000000011"`},
		"a body":          {update + "msg_body = 'x' WHERE msg_key = '2026000000011'", 1, `"2026000000011"`},
		"a deletion":      {"DELETE FROM trade_mq_consumer_log WHERE msg_key = '2026000000011'", 1, "1 are changed or gone"},
		"another group's": {insert("points", "new"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, classicTable)
			w.fill(1000)
			w.o.page, w.o.LastPass = 100, true
			wrote := c.writes == ""
			w.o.Progress = func(p Progress) {
				if !p.Looking && p.Rows >= 500 && !wrote {
					wrote = true
					w.exec(c.writes)
				}
			}
			r, err := Run(t.Context(), w.o)
			assert.That(t, wrote && r.Finished && r.Late == c.late, "wrote %v, %d late, want %d: %+v", wrote, r.Late, c.late, r)
			unfinished := w.doubts()
			if c.late == 0 {
				assert.That(t, err == nil && r.NotLast == "" && len(unfinished) == 0, "%v, %q, unfinished %v; want a last pass",
					err, r.NotLast, unfinished)
				return
			}
			assert.That(t, errors.Is(err, ErrNotLast) && strings.Contains(r.NotLast, c.want) && len(unfinished) == 1,
				"%v, unfinished %v; want ErrNotLast with %s", err, unfinished, c.want)
			assert.Is(t, w.run().NotLast, "", "nobody writes any more, and")
		})
	}
}

// Given an old consumer that is at work now and then, also when the pass is through the table already, then the pass
// was no last one: it waits for as long as it must be quiet.
func TestALastPassWaitsForTheRhythmOfTheOldConsumer(t *testing.T) {
	w := newWorld(t, classicTable)
	w.fill(100)
	w.o.LastPass, w.o.quiet = true, 3*time.Second
	working, stop := context.WithCancel(t.Context())
	defer stop()
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for i := 0; wait.For(working, w.o.quiet/3) == nil; i++ {
			w.old(fmt.Sprint(i), 1)
		}
	})
	r, err := Run(t.Context(), w.o)
	stop()
	consumer.Wait()
	assert.That(t, errors.Is(err, ErrNotLast) && r.Late != 0, "%v, %d late; want ErrNotLast", err, r.Late)
	assert.Is(t, w.run().NotLast, "", "it has ended, and")
}

// Given times without a zone, when they are read in a wrong one, then a last pass says so: when they come to lie in the
// future, or when a row is written just now and reads as hours old. Otherwise the newest time is told.
func TestALastPassNoticesAWrongZone(t *testing.T) {
	t.Parallel()
	shanghai := time.FixedZone("+08:00", 8*3600)
	for name, c := range map[string]struct {
		written, read *time.Location
		writes        bool // during the pass
		late          int
		want          string // in why it was no last pass
	}{
		"right":                 {written: shanghai, read: shanghai},
		"too far west":          {written: shanghai, read: time.UTC, want: "right --time-zone"},
		"too far east":          {written: time.UTC, read: shanghai},
		"too far east, at work": {written: time.UTC, read: shanghai, writes: true, late: 1, want: "--time-zone is wrong too"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, strings.Replace(classicTable, "TIMESTAMP NULL", "DATETIME", 1))
			w.o.LastPass, w.o.Zone = true, c.read
			row := func(key string) {
				w.exec("INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_timestamp) "+
					"VALUES (?, 'order_cancel', ?, 1, ?)", oldGroup, key, time.Now().In(c.written).Format(time.DateTime))
			}
			row("a")
			w.o.Progress = func(p Progress) {
				if !p.Looking && c.writes {
					row("b")
				}
			}
			r, err := Run(t.Context(), w.o)
			assert.That(t, r.Late == c.late && (err != nil) == (c.want != "") && strings.Contains(r.NotLast, c.want),
				"%v, %d late, %q; want %q", err, r.Late, r.NotLast, c.want)
			assert.Has(t, fmt.Sprint(r.Notes), "the newest time in it, read as "+c.read.String(), "notes")
			if c.want != "" {
				assert.Is(t, len(w.doubts()), 1, "unfinished")
			}
		})
	}
}

// Given a last pass, when the old table is written to after it, then that is a doubt; when rows are deleted, or are
// another group's, it is none; when the table cannot be read, nobody knows.
func TestWhatIsNewerThanTheLastPassIsADoubt(t *testing.T) {
	t.Parallel()
	const into = "INSERT INTO trade_mq_consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_timestamp) " +
		"VALUES "
	newRow := func(key, at string) string {
		return fmt.Sprintf(into+"('%s', 'order_cancel', '%s', 1, '%s')", oldGroup, key, at)
	}
	const early = "2026-11-01 09:00:00"
	const deletion = "DELETE FROM trade_mq_consumer_log WHERE msg_key LIKE '20260000000%'"
	for name, c := range map[string]struct {
		writes []string
		sure   bool
		want   string // "": no doubt
	}{
		"nobody wrote":             {},
		"a new row in the middle":  {[]string{newRow("2026000000005-new", early)}, true, "had 100 rows and has 101"},
		"a new row behind all":     {[]string{newRow("9", early)}, true, "1 rows are behind the last one"},
		"rows are a success now":   {[]string{"UPDATE trade_mq_consumer_log SET consumer_status = 1"}, true, "was changed"},
		"rows are deleted":         {writes: []string{deletion}},
		"deleted, and a newer row": {[]string{deletion, newRow("2", "2026-11-01 10:00:01")}, true, "10:00:01"},
		"another group's":          {writes: []string{into + "('points', 't', 'k', 1, '2026-11-02 10:00:00')"}},
		"the table is gone":        {[]string{"DROP TABLE trade_mq_consumer_log"}, false, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, classicTable)
			w.fill(100)
			w.run()
			d := w.doubts()
			assert.That(t, len(d) == 1 && d[0].Sure && strings.Contains(d[0].Why, "no last pass"), "before a last pass: %v", d)
			w.o.LastPass = true
			w.run()
			for _, text := range c.writes {
				w.exec(text)
			}
			switch d := w.doubts(); {
			case c.want == "":
				assert.Is(t, len(d), 0, "%v", d)
			case len(d) != 1 || d[0].Sure != c.sure || !strings.Contains(d[0].Why, c.want):
				t.Errorf("%v; want %s", d, c.want)
			}
		})
	}
}

func TestParseTableReadsOneNameOrTwo(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][2]string{
		"t": {"", "t"}, "d.t": {"d", "t"}, "`a.b`.t": {"a.b", "t"}, "`d`.`t`": {"d", "t"}, "`t`": {"", "t"},
		"Bestell log": {"", "Bestell log"},
	} {
		database, table, err := ParseTable(name)
		assert.That(t, err == nil && database == want[0] && table == want[1], "%s: %q, %q, %v", name, database, table, err)
	}
	for _, name := range []string{"", ".", "a.", ".b", "a.b.c", "`a", "`a`b", "a`b", strings.Repeat("x", 65)} {
		_, _, err := ParseTable(name)
		assert.That(t, err != nil, "%q is accepted", name)
	}
}

// What cannot be taken over is refused with what to do, before anything is written.
func TestWhatIsNoClassicTableIsRefused(t *testing.T) {
	w := newWorld(t, classicTable)
	w.exec("CREATE VIEW v AS SELECT * FROM trade_mq_consumer_log")
	w.exec("CREATE TABLE bare (group_name VARCHAR(9), msg_tag VARCHAR(9), msg_key VARCHAR(9), consumer_status INT)")
	w.exec("CREATE TABLE other (id INT PRIMARY KEY, group_name VARCHAR(9))")
	w.exec("CREATE TABLE floats (id DOUBLE PRIMARY KEY, group_name VARCHAR(9), msg_tag VARCHAR(9), msg_key VARCHAR(9), " +
		"consumer_status INT)")
	w.exec("CREATE TABLE parts (group_name VARCHAR(90), msg_tag VARCHAR(90), msg_key VARCHAR(90), consumer_status INT, " +
		"PRIMARY KEY (group_name(9), msg_tag(9), msg_key(9)))")
	for from, want := range map[string]string{
		"v": "is a view", "bare": "no primary key", "other": "has no column msg_tag, msg_key, consumer_status;",
		"consumer_log": "of rollbackd's own", "nothing": "there is no nothing", "a.b.c": "no name of a table",
		"floats": "is double", "parts": "first 9 characters", "mysql.nothing": "there is no mysql.nothing",
	} {
		w.o.From = from
		_, err := Run(t.Context(), w.o)
		assert.That(t, errors.Is(err, ErrTable) && strings.Contains(err.Error(), want), "%s: %v, want %q", from, err, want)
	}
	assert.Is(t, w.number("SELECT COUNT(*) FROM rollbackd_meta WHERE name LIKE 'taken:%'"), 0, "waypoints were written")
}

// collation is one in a note: servers have different ones by default.
var collation = regexp.MustCompile(`is utf8mb4_\w+:`)

// Tables of other shapes are taken over as far as they go, and what they lack is said: testdata/shapes.sql has a table
// and a row of each, testdata/shapes.golden the notes, what is odd, and our row. -update rewrites that.
func TestTablesOfOtherShapesAreTakenOver(t *testing.T) {
	t.Parallel()
	text := require.Get(os.ReadFile("testdata/shapes.sql"))(t)
	var got strings.Builder
	for _, shape := range strings.Split(string(text), "-- ")[1:] {
		name, statements, _ := strings.Cut(shape, "\n")
		create, insert, _ := strings.Cut(statements, ";\n")
		w := anotherWorld(t, create)
		w.exec(strings.TrimSuffix(insert, ";\n"))
		w.o.From, w.o.Groups, w.o.page = "o", nil, 1
		r := w.run()
		fmt.Fprintf(&got, "%s: %v\n", name, r.Counts)
		for _, note := range r.Notes {
			fmt.Fprintf(&got, "  %s\n", collation.ReplaceAllString(note, "is OF SOME COLLATION:"))
		}
		for _, row := range w.texts("SELECT CONCAT_WS(' ', msg_key, 'is', consumer_status, consumer_times, " +
			"IF(ABS(TIMESTAMPDIFF(HOUR, consumer_timestamp, UTC_TIMESTAMP())) < 2, 'now', consumer_timestamp), " +
			"LEFT(HEX(body_hash), 8)) FROM consumer_log") {
			fmt.Fprintf(&got, "  %s\n", row)
		}
	}
	golden.Is(t, "testdata/shapes.golden", got.String())
}

// Given a table of another database, when it is taken over without hashes of bodies, then a later delivery with any
// body will be a copy.
func TestATableOfAnotherDatabaseIsTakenOver(t *testing.T) {
	w, elsewhere := newWorld(t, ""), anotherWorld(t, classicTable)
	elsewhere.old("k", 1)
	w.o.From = stack.One[string](t, elsewhere.db, "SELECT DATABASE()") + ".trade_mq_consumer_log"
	w.o.NoBodyHash = true
	w.want("the pass", w.run(), map[Kind]int{Success: 1})
	row := w.read("k")
	assert.That(t, row.BodyHash == nil, "row: %+v", row)
}
