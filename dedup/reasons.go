package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// ReasonCount counts the dead rows of one reason. The names of its JSON form are stable.
type ReasonCount struct {
	Reason Reason    `json:"reason"`
	Count  int       `json:"count"`
	Oldest time.Time `json:"oldest"` // when they died, by the database's clock
	Newest time.Time `json:"newest"`
}

// CountReasons counts the dead rows that f chooses, by reason; its Statuses, Limit and After do not matter. It reads
// dead rows only, through the index on the status, however large the log is.
func (l *Log) CountReasons(ctx context.Context, f Filter) ([]ReasonCount, error) {
	f.Limit = 0
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("count by reason: %w", err)
	}
	counts := []ReasonCount{}
	s := l.reasonsText(f)
	err := l.query(ctx, func(rows *sql.Rows) error {
		var c ReasonCount
		var oldest, newest int64
		err := rows.Scan(&c.Reason, &c.Count, &oldest, &newest)
		c.Oldest, c.Newest = time.UnixMicro(oldest).UTC(), time.UnixMicro(newest).UTC()
		counts = append(counts, c)
		return err
	}, s.String(), s.args...)
	if err != nil {
		return nil, fmt.Errorf("count by reason: %w", err)
	}
	return counts, nil
}

// reasonsText forces the index: the primary key begins with the group, and through it the statement would read every
// row.
func (l *Log) reasonsText(f Filter) (s statement) {
	const since = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', "
	s.add("SELECT COALESCE(reason, ''), COUNT(*), " + since + "MIN(consumer_timestamp)), " + since +
		"MAX(consumer_timestamp)) FROM " +
		l.table + " FORCE INDEX (by_status)")
	s.choose(f, Dead)
	s.add(" GROUP BY reason ORDER BY COUNT(*) DESC, reason")
	return s
}
