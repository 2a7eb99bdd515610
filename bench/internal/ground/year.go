package ground

import (
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// yearSpeed is how many rows a second come in a simulated year: about as many as a daemon applies. So a day of it is
// short, and the cleaner that sees its rows is under the load that it must keep pace with.
const yearSpeed, yearDays, keptDays = 30_000, 365, 30

// Year is a year of a consumer log, of which thirty days are kept, until End.
type Year struct {
	Rows int64
	End  time.Time
}

// daily is how many rows a day brings, and how long it takes.
func (y Year) daily() (rows int64, day time.Duration) {
	rows = y.Rows / yearDays
	return rows, time.Duration(rows) * time.Second / yearSpeed
}

// BeginYear gives a log the rows of the first days that are kept, and the database about half as much memory for pages
// as such rows take.
func (f *Field) BeginYear(y Year) {
	const bytesForRow, least = 25, 128 << 20
	f.exec(fmt.Sprint("SET GLOBAL innodb_buffer_pool_size = ", max(least, y.Rows*bytesForRow)))
	rows, day := y.daily()
	f.FillLog(keptDays*rows, y.End.Add(-(yearDays-keptDays)*day), keptDays*day)
}

// PassYear lets the rest of a year go by: each day brings its share of the rows, and beside it the product's cleaner
// deletes, at its own pace, what is older than is kept. It says how many rows the cleaner has deleted.
func (f *Field) PassYear(y Year) (deleted int) {
	const beyond = 1 << 40 // the numbers of all other rows
	db, _, err := dedup.Open(f.ground.Ctx, f.DSN, dedup.OpenOptions{LockWait: time.Second})
	must.OK(err)
	defer func() { must.OK(must.Get(db.DB()).Close()) }()
	log := must.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 5,
	}))
	rows, day := y.daily()
	for left := time.Duration(yearDays - keptDays - 1); left >= 0; left-- {
		both := []func(){
			func() { f.addRows(beyond+int64(left)*rows, rows, y.End.Add(-left*day), day) },
			func() {
				for _, p := range must.Get(log.Prune(f.ground.Ctx, dedup.PruneOptions{
					Group: Group, OlderThan: time.Since(y.End) + (left+1+keptDays)*day,
				})) {
					deleted += p.Rows
				}
			},
		}
		must.Side(len(both), func(i int) { both[i]() })
	}
	f.writeBack()
	return deleted
}

// LookUps is how many of so many rows that are picked by chance one connection finds in a second, a batch at a time.
func (f *Field) LookUps(rows int) float64 {
	const batch = 500
	var keys []string
	f.Each(fmt.Sprint("SELECT HEX(msg_key), 0 FROM consumer_log FORCE INDEX (by_status) WHERE consumer_status = 1 "+
		"ORDER BY RAND() LIMIT ", rows), func(key string, _ int64) { keys = append(keys, "0x"+key) })
	began := time.Now()
	for at := 0; at < len(keys); at += batch {
		some := keys[at:min(at+batch, len(keys))]
		n := value[int](f, fmt.Sprintf("SELECT COUNT(body_hash) FROM consumer_log WHERE group_name = '%s' AND "+
			"msg_tag = '%s' AND msg_key IN (%s)", Group, RoutingKey, strings.Join(some, ",")))
		if n != len(some) {
			must.OK(fmt.Errorf("%d of %d rows were found", n, len(some)))
		}
	}
	return float64(len(keys)) / time.Since(began).Seconds()
}

// LogMiB is how much room the log takes, with its indexes.
func (f *Field) LogMiB() float64 {
	f.exec("ANALYZE TABLE consumer_log")
	return value[float64](f, "SELECT CAST((data_length + index_length) / 1048576 AS DOUBLE) FROM "+
		"information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'consumer_log'")
}
