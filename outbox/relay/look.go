package relay

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// dear is what a look may cost beside the way to the server. A server passes about 200,000 entries of removed rows in
// that time.
const dear = 8 * time.Millisecond

// looker finds the next row that is due. Rows that were removed stay in the index for as long as any transaction of the
// server is older than their removal, a backup's for example. A server passes all of them, those behind the end of what
// it is asked for too, until it meets a row: a million cost 20 to 40 ms. So when a look was dear the next ones begin
// beyond. For the rows of transactions that took long to commit, some begin at the first row again: while that is dear,
// after so long a pause that it takes a fiftieth of the time, or after three minutes.
//
// READ UNCOMMITTED would spare what a removed row costs while a transaction is open that has written before, a look-up
// by its key. But it shows rows that are not committed, and from the oldest of them on each claim would look for keys.
type looker struct {
	db    *sql.DB
	low   time.Time // a look begins here; zero: at the first row
	whole time.Time // from then on one begins at the first row
}

// A dear look from the first row is followed by another when so many times as long has passed as it took, or longest.
const (
	pauses  = 49
	longest = 3 * time.Minute
)

// next is from where on there is a row that is due, by the database's clock.
func (l *looker) next(ctx context.Context) (from time.Time, due bool, err error) {
	began, begin := time.Now(), l.low
	whole := begin.IsZero() || !began.Before(l.whole)
	if whole {
		begin = time.Time{}
	}
	from, now, due, err := l.look(ctx, begin)
	took := time.Since(began)
	dearly := err == nil && l.isDear(ctx, took)
	switch {
	case err != nil:
		return from, false, err
	case whole && !dearly:
		l.low = time.Time{}
	case whole:
		l.whole = time.Now().Add(min(pauses*took, longest))
	}
	if dearly && (l.low.IsZero() || !whole) {
		beyond := from
		if !due {
			beyond = now
		}
		l.low = beyond.Add(-time.Second) // most transactions are shorter
	}
	if due && from.Before(l.low) {
		l.whole = time.Time{} // there may be more of them
	}
	return from, due, nil
}

// isDear reports whether a look was dear that has taken so long: a far-away server is late with any answer.
func (l *looker) isDear(ctx context.Context, took time.Duration) bool {
	if took <= dear {
		return false
	}
	began := time.Now()
	_ = l.db.PingContext(ctx) // the next statement tells of what is wrong
	return took-time.Since(began) > dear
}

// look is one statement, and all that an idle relay asks: where the first row is that is due, from begin on. It reads
// an index alone and locks nothing. With ORDER BY and LIMIT in the place of MIN, MySQL would begin at the first entry.
func (l *looker) look(ctx context.Context, begin time.Time) (from, now time.Time, due bool, err error) {
	where, args := dueFrom(begin)
	var first, clock sql.NullString
	err = l.db.QueryRowContext(ctx, "SELECT CAST((SELECT MIN(next_at) FROM rollbackd_outbox FORCE INDEX (next_at) WHERE "+
		where+") AS CHAR), CAST(UTC_TIMESTAMP(6) AS CHAR)", args...).Scan(&first, &clock)
	if err != nil {
		return from, now, false, fmt.Errorf("look for what is due: %w", err)
	}
	now, _ = time.Parse(timeForm, clock.String) // the server has written it
	if first.Valid {
		from, _ = time.Parse(timeForm, first.String) // '0000-00-00' is before all others
	}
	return from, now, first.Valid, nil
}

// dueFrom is a condition that holds for rows that are due, from begin on; zero is no bound.
func dueFrom(begin time.Time) (where string, args []any) {
	where = "next_at <= UTC_TIMESTAMP(6)"
	if begin.IsZero() {
		return where, nil
	}
	return where + " AND next_at >= ?", []any{written(begin)}
}

// timeForm is how a DATETIME(6) is read and written, whatever the pool does with times.
const timeForm = "2006-01-02 15:04:05.000000"

func written(t time.Time) string { return t.UTC().Format(timeForm) }
