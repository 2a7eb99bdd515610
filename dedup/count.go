package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// MaxCounted is where CountDead stops counting.
const MaxCounted = 100_000

// CountDead is the number of rows in Dead, MaxCounted at most, so that looking never takes long. It reads an index
// only.
func (l *Log) CountDead(ctx context.Context) (int, error) {
	n, err := l.count(ctx, sqlOf("SELECT 1 FROM "+l.table+" WHERE consumer_status = ?", int(Dead)), MaxCounted)
	if err != nil {
		return 0, fmt.Errorf("count the rows in %v: %w", Dead, err)
	}
	return n, nil
}

// count counts what a statement selects, most at most.
func (l *Log) count(ctx context.Context, s statement, most int) (n int, err error) {
	s.add(" LIMIT ?", most)
	err = sqlOf("SELECT COUNT(*) FROM ("+s.String()+") AS some", s.args...).scan(ctx, l.db, &n)
	return n, err
}

// Count is how many rows in f's first status f chooses, most at most, and how many of them were reopened spent times or
// more; 0 asks for none. It looks at no more rows than there are in that status.
func (l *Log) Count(ctx context.Context, f Filter, spent, most int) (all, often int, err error) {
	f.Limit = 0
	if err := l.complete(ctx, &f); err != nil {
		return 0, 0, fmt.Errorf("count: %w", err)
	}
	var s statement
	s.add("SELECT COUNT(*), COALESCE(SUM(? > 0 AND replays >= ?), 0) FROM (SELECT replays FROM "+l.table, spent, spent)
	s.choose(f, f.Statuses[0])
	s.add(" LIMIT ?) AS some", most)
	if err := s.scan(ctx, l.db, &all, &often); err != nil {
		return 0, 0, fmt.Errorf("count rows in %v: %w", f.Statuses[0], err)
	}
	return all, often, nil
}

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
	counts, err := list(ctx, l.db, l.reasonsText(f), func(rows *sql.Rows) (c ReasonCount, err error) {
		err = rows.Scan(&c.Reason, &c.Count, utc{&c.Oldest}, utc{&c.Newest})
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("count by reason: %w", err)
	}
	return append([]ReasonCount{}, counts...), nil // in JSON none is a list, too
}

// reasonsText forces the index: the primary key begins with the group, and through it the statement would read every
// row.
func (l *Log) reasonsText(f Filter) (s statement) {
	s.add("SELECT COALESCE(reason, ''), COUNT(*), " + since + "MIN(consumer_timestamp)), " + since +
		"MAX(consumer_timestamp)) FROM " + l.table + " FORCE INDEX (by_status)")
	s.choose(f, Dead)
	s.add(" GROUP BY reason ORDER BY COUNT(*) DESC, reason")
	return s
}

// Oldest is the row of a group that has stood longest in each of the states that wait for somebody. A state without a
// row is not in the map.
func (l *Log) Oldest(ctx context.Context, group string) (map[Status]Row, error) {
	oldest := map[Status]Row{}
	for _, status := range waiting() {
		rows, err := list(ctx, l.db, sqlOf("SELECT "+rowColumns+" FROM "+l.table+" FORCE INDEX (by_status)"+
			" WHERE consumer_status = ? AND group_name = ? ORDER BY consumer_timestamp LIMIT 1", int(status), []byte(group)),
			l.scanRow)
		if err != nil {
			return nil, fmt.Errorf("read the oldest row in %v: %w", status, err)
		}
		for _, r := range rows {
			oldest[status] = r
		}
	}
	return oldest, nil
}

// OldestOpen is the age of the oldest row in each state that has one, or of the one that is furthest ahead of the
// database's clock. Index lookups only.
func (l *Log) OldestOpen(ctx context.Context) (map[Status]time.Duration, error) {
	ages := make(map[Status]time.Duration)
	for _, status := range waiting() {
		var age sql.NullInt64
		err := sqlOf("SELECT GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(consumer_timestamp), UTC_TIMESTAMP(6)), "+
			"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MAX(consumer_timestamp))) FROM "+l.table+
			" WHERE consumer_status = ?", int(status)).scan(ctx, l.db, &age)
		if err != nil {
			return nil, fmt.Errorf("read the oldest row in %v: %w", status, err)
		}
		if age.Valid {
			ages[status] = time.Duration(age.Int64) * time.Microsecond
		}
	}
	return ages, nil
}

// waiting are the states that wait for somebody.
func waiting() []Status { return []Status{Processing, Failed, Dead} }
