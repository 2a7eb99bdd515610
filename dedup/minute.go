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

// minuteCounts are the columns that add up, in the order of counts.
func minuteCounts() []string {
	columns := []string{"applied", "retried"}
	for _, r := range Reasons() {
		columns = append(columns, "dead_"+string(r))
	}
	for i := range lagBuckets {
		columns = append(columns, fmt.Sprint("lag_", i))
	}
	return columns
}

// minuteGauges are the columns of which the largest counts.
func minuteGauges() []string { return []string{"waiting", "retrying"} }

// values are those of the columns, the gauges last.
func (m Minute) values() []any {
	all := []any{m.Applied, m.Retried}
	for _, r := range Reasons() {
		all = append(all, m.Dead[r])
	}
	for _, n := range m.Lag {
		all = append(all, n)
	}
	return append(all, m.Waiting, m.Retrying)
}

const minuteNow = "TIMESTAMPDIFF(MINUTE, '1970-01-01', UTC_TIMESTAMP() - INTERVAL ? SECOND)"

// AddMinute adds what a daemon did to the row of the minute that was, by the database's clock, ago ago. Counts add up,
// and of the messages that wait the largest number stays. If its answer is lost it may have been added.
func (l *Log) AddMinute(ctx context.Context, group, queue string, ago time.Duration, m Minute) error {
	columns := append(minuteCounts(), minuteGauges()...)
	values := m.values()
	s := sqlOf("INSERT INTO "+l.MinuteTable()+" (group_name, queue, minute, "+strings.Join(columns, ", ")+
		") VALUES (?, ?, "+minuteNow, []byte(group), []byte(queue), int(ago.Seconds()))
	s.add(strings.Repeat(", ?", len(values))+") ON DUPLICATE KEY UPDATE ", values...)
	for i, c := range minuteCounts() {
		s.item(i, c+" = "+c+" + ?", values[i])
	}
	for i, c := range minuteGauges() {
		v := values[len(minuteCounts())+i]
		s.add(", "+c+" = GREATEST(COALESCE("+c+", ?), COALESCE(?, "+c+"))", v, v)
	}
	if _, err := s.exec(ctx, l.db); err != nil {
		return fmt.Errorf("add to the minute's figures of queue %s: %w", queue, err)
	}
	return nil
}

// Minutes lists the minutes of a queue that began less than span ago, by the database's clock, the oldest first. A
// minute in which no daemon wrote has none.
func (l *Log) Minutes(ctx context.Context, group, queue string, span time.Duration) ([]Minute, error) {
	all, err := list(ctx, l.db, sqlOf("SELECT minute, "+strings.Join(append(minuteCounts(), minuteGauges()...), ", ")+
		" FROM "+l.MinuteTable()+" WHERE group_name = ? AND queue = ? AND minute > "+minuteNow+" ORDER BY minute",
		[]byte(group), []byte(queue), int(span.Seconds())), scanMinute)
	if err != nil {
		return nil, fmt.Errorf("read the figures of the last minutes of queue %s: %w", queue, err)
	}
	return all, nil
}

func scanMinute(rows *sql.Rows) (Minute, error) {
	m := Minute{Dead: map[Reason]int64{}}
	var minute int64
	dead := make([]int64, len(Reasons()))
	into := []any{&minute, &m.Applied, &m.Retried}
	for i := range dead {
		into = append(into, &dead[i])
	}
	for i := range m.Lag {
		into = append(into, &m.Lag[i])
	}
	err := rows.Scan(append(into, &m.Waiting, &m.Retrying)...)
	m.At = time.Unix(minute*60, 0).UTC()
	for i, r := range Reasons() {
		if dead[i] > 0 {
			m.Dead[r] = dead[i]
		}
	}
	return m, err
}

// MinuteTable is where the minutes stand. Who keeps house deletes the old ones.
func (l *Log) MinuteTable() string { return "`" + l.o.Table + "_minute`" }
