package legacyimport

import (
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
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
