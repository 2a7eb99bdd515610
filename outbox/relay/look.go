package relay

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// dear is what a look may cost. A server skips about 100,000 entries of removed rows in that time.
const dear = 8 * time.Millisecond

// looker finds the next row that is due. Rows that were removed stay in the index for as long as any transaction of the
// server is older than their removal, a backup's for example; a million of them cost 100 ms to pass, each time. So when
// a look was dear the next ones begin later, beyond low, and what is below is looked through in pieces, for the rows of
// transactions that took long to commit.
type looker struct {
	db *sql.DB

	low   time.Time     // a look begins here; zero: at the first row
	swept time.Time     // below low: up to here it was looked through; zero: not begun
	piece time.Duration // how much of it is looked through at a time
	cost  time.Duration // of this pass through it
}

// next is from where on there is a row that is due, by the database's clock.
func (l *looker) next(ctx context.Context) (from time.Time, due bool, err error) {
	from, now, due, cost, err := l.look(ctx, l.low, time.Time{})
	if err != nil {
		return from, false, err
	}
	if cost > dear {
		l.beginLater(from, now)
	}
	if l.low.IsZero() {
		return from, due, nil
	}
	below, found, err := l.sweep(ctx)
	if found {
		return below, true, nil
	}
	return from, due, err
}

// beginLater moves low half-way to the first row that is due, or to now when there is none.
func (l *looker) beginLater(first, now time.Time) {
	if first.IsZero() {
		first = now
	}
	if l.low.IsZero() {
		l.low, l.swept, l.cost = first.Add(-time.Hour), time.Time{}, 0
	}
	l.low = l.low.Add(first.Sub(l.low) / 2)
}

// sweep looks through one piece below low. At the end of a pass that was cheap, nothing is there any more, and looks
// begin at the first row again.
func (l *looker) sweep(ctx context.Context) (from time.Time, due bool, err error) {
	begin, end := l.swept, l.swept.Add(l.piece)
	if begin.IsZero() {
		l.cost, l.piece = 0, time.Second
		end = l.low.Add(-time.Hour)
	}
	if end.After(l.low) {
		end = l.low
	}
	from, _, due, cost, err := l.look(ctx, begin, end)
	if err != nil || due {
		return from, due, err
	}
	l.cost += cost
	l.swept = end
	switch {
	case cost > dear/2 && l.piece > time.Microsecond:
		l.piece /= 2
	case cost < dear/8:
		l.piece *= 2
	}
	if !end.Before(l.low) {
		if l.swept = (time.Time{}); l.cost < dear {
			l.low = time.Time{}
		}
	}
	return from, false, nil
}

// look is one statement, and all that an idle relay asks: where the first row is that is due, between two times; a zero
// one is no bound. It reads an index alone and locks nothing.
func (l *looker) look(ctx context.Context, begin, end time.Time) (
	from, now time.Time, due bool, cost time.Duration, err error,
) {
	where, args := "next_at <= UTC_TIMESTAMP(6)", []any{}
	if !begin.IsZero() {
		where, args = where+" AND next_at >= ?", append(args, written(begin))
	}
	if !end.IsZero() {
		where, args = where+" AND next_at <= ?", append(args, written(end))
	}
	began := time.Now()
	var first, clock sql.NullString
	err = l.db.QueryRowContext(ctx, "SELECT CAST((SELECT next_at FROM rollbackd_outbox FORCE INDEX (next_at) WHERE "+
		where+" ORDER BY next_at LIMIT 1) AS CHAR), CAST(UTC_TIMESTAMP(6) AS CHAR)", args...).Scan(&first, &clock)
	if err != nil {
		return from, now, false, 0, fmt.Errorf("look for what is due: %w", err)
	}
	cost = time.Since(began)
	now, _ = time.Parse(timeForm, clock.String) // the server has written it
	if first.Valid {
		from, _ = time.Parse(timeForm, first.String) // '0000-00-00' is before all others
	}
	return from, now, first.Valid, cost, nil
}

// timeForm is how a DATETIME(6) is read and written, whatever the pool does with times.
const timeForm = "2006-01-02 15:04:05.000000"

func written(t time.Time) string { return t.UTC().Format(timeForm) }
