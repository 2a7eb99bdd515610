package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// MinutesKept is how long a minute is kept: a week's chart has all of its first day.
const MinutesKept = 8 * 24 * time.Hour

// lagBuckets are the bounds of [LagBounds], and what lies beyond.
const lagBuckets = 19

// LagBounds are the upper bounds, in seconds, of the buckets in which lags are counted. The table has a column for
// each, and one for what lies beyond: another bound wants a migration.
func LagBounds() []float64 {
	return []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200}
}

// Minute is what all daemons of a group did with a queue within a minute.
type Minute struct {
	At               time.Time // when it began; Add does not read it
	Applied, Retried int64
	Dead             map[Reason]int64
	Lag              [lagBuckets]int64 // how many of those applied, by the bucket of [LagBounds]
	// Waiting are the messages in the main queue, Retrying those in the retry queues; not Valid while nobody knows.
	Waiting, Retrying sql.Null[int64]
}

// minuteRow is a row of the table: a minute, and what it has in a map.
type minuteRow struct {
	Minute
	minute int64 // since 1970
	dead   []int64
}

// figures are the columns of a row besides its key, and where each stands. The last two are gauges: the largest counts.
func (r *minuteRow) figures() (columns []string, at []any) {
	add := func(column string, figure any) { columns, at = append(columns, column), append(at, figure) }
	add("applied", &r.Applied)
	add("retried", &r.Retried)
	r.dead = make([]int64, len(Reasons()))
	for i, reason := range Reasons() {
		r.dead[i] = r.Dead[reason]
		add("dead_"+string(reason), &r.dead[i])
	}
	for i := range r.Lag {
		add(fmt.Sprint("lag_", i), &r.Lag[i])
	}
	add("waiting", &r.Waiting)
	add("retrying", &r.Retrying)
	return columns, at
}

const minuteNow = "TIMESTAMPDIFF(MINUTE, '1970-01-01', UTC_TIMESTAMP() - INTERVAL ? SECOND)"

// AddMinute adds what a daemon did to the row of the minute that was, by the database's clock, ago ago. Counts add up,
// and of the messages that wait the largest number stays. If its answer is lost it may have been added.
func (l *Log) AddMinute(ctx context.Context, group, queue string, ago time.Duration, m Minute) (err error) {
	defer wrap(&err, "add to the minute's figures of queue %s", queue)
	columns, values := (&minuteRow{Minute: m}).figures()
	s := sqlOf("INSERT INTO "+l.MinuteTable()+" (group_name, queue, minute, "+strings.Join(columns, ", ")+
		") VALUES (?, ?, "+minuteNow, []byte(group), []byte(queue), int(ago.Seconds()))
	s.add(strings.Repeat(", ?", len(values))+") ON DUPLICATE KEY UPDATE ", values...)
	for i, c := range columns {
		if v := values[i]; i < len(columns)-2 {
			s.item(i, c+" = "+c+" + ?", v)
		} else {
			s.item(i, c+" = GREATEST(COALESCE("+c+", ?), COALESCE(?, "+c+"))", v, v)
		}
	}
	_, err = s.exec(ctx, l.db)
	return err
}

// Minutes lists the minutes of a queue that began less than span ago, by the database's clock, the oldest first. A
// minute in which no daemon wrote has none.
func (l *Log) Minutes(ctx context.Context, group, queue string, span time.Duration) (all []Minute, err error) {
	defer wrap(&err, "read the figures of the last minutes of queue %s", queue)
	columns, _ := new(minuteRow).figures()
	rows, err := list(ctx, l.db, sqlOf("SELECT minute, "+strings.Join(columns, ", ")+" FROM "+l.MinuteTable()+
		" WHERE group_name = ? AND queue = ? AND minute > "+minuteNow+" ORDER BY minute",
		[]byte(group), []byte(queue), int(span.Seconds())), func(r *minuteRow) []any {
		_, at := r.figures()
		return append([]any{&r.minute}, at...)
	})
	for _, r := range rows {
		r.At, r.Minute.Dead = time.Unix(r.minute*60, 0).UTC(), map[Reason]int64{}
		for i, reason := range Reasons() {
			if r.dead[i] > 0 {
				r.Minute.Dead[reason] = r.dead[i]
			}
		}
		all = append(all, r.Minute)
	}
	return all, err
}

// MinuteTable is where the minutes stand. Who keeps house deletes the old ones.
func (l *Log) MinuteTable() string { return "`" + l.o.Table + "_minute`" }
