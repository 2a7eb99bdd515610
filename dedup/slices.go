package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// timeSlices are the parts into which the time between the first and the last row is cut, so that rows that came
	// unevenly still keep all readers busy.
	timeSlices = 16
	// sliceReaders read at a time, each over a connection: the database works on a statement with one processor.
	sliceReaders = 2
)

// wide reports whether no index leads to the rows that f chooses, all of one status, so that reading a page of them may
// take seconds.
func (f Filter) wide() bool {
	return len(f.Statuses) == 1 && len(f.Keys) == 0 && f.searches() && !f.Oldest && f.upTo == nil
}

// listAll is List, faster where it has to go through all rows of a status: it reads the latest time first, and further
// back beside it.
func (l *Log) listAll(ctx context.Context, f Filter) ([]Row, Cursor, error) {
	if err := f.check(); err != nil || !f.wide() {
		return l.List(ctx, f)
	}
	first, last, err := l.span(ctx, f)
	if err != nil {
		return nil, "", fmt.Errorf("list rows in %v: %w", f.Statuses[0], err)
	}
	parts := f.cut(first, last)
	pages := make([]page, len(parts))
	var mu sync.Mutex // guards pages
	readers, reading := errgroup.WithContext(ctx)
	readers.SetLimit(sliceReaders)
	for i, part := range parts {
		readers.Go(func() error {
			mu.Lock()
			full := joined(pages[:i], f.Limit).more
			mu.Unlock()
			if full {
				return nil
			}
			rows, next, err := l.List(reading, part)
			mu.Lock()
			defer mu.Unlock()
			pages[i] = page{rows, next != ""}
			return err
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, "", err
	}
	found := joined(pages, f.Limit)
	if !found.more {
		return found.rows, "", nil
	}
	next, err := cursorAt(found.rows[f.Limit-1])
	return found.rows, next, err
}

// page is what was read of a slice; more: there is more of it than fits a page.
type page struct {
	rows []Row
	more bool
}

// joined makes one page of many.
func joined(pages []page, limit int) (all page) {
	for _, p := range pages {
		all.rows, all.more = append(all.rows, p.rows...), all.more || p.more
	}
	if len(all.rows) > limit {
		all.rows, all.more = all.rows[:limit], true
	}
	return all
}

// span is when the first and the last row of f's status made their last transition; zero when there is none. Index
// lookups only.
func (l *Log) span(ctx context.Context, f Filter) (first, last time.Time, err error) {
	var from, to sql.NullInt64
	err = l.db.QueryRowContext(ctx, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MIN(consumer_timestamp)), "+
		"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', MAX(consumer_timestamp)) FROM "+l.table+" WHERE consumer_status = ?",
		int(f.Statuses[0])).Scan(&from, &to)
	if err != nil || !from.Valid || !to.Valid {
		return first, last, err
	}
	return time.UnixMicro(from.Int64).UTC(), time.UnixMicro(to.Int64).UTC(), nil
}

// cut makes of f one filter for each slice of the time from first to last, the latest first. Together they choose what
// f chooses, also what came after last.
func (f Filter) cut(first, last time.Time) (parts []Filter) {
	if f.Since.After(first) {
		first = f.Since
	}
	for _, end := range []time.Time{f.Until, f.UpTo} {
		if !end.IsZero() && end.Before(last) {
			last = end
		}
	}
	step := last.Sub(first) / timeSlices
	if step < time.Second {
		return []Filter{f}
	}
	rest := f
	for range timeSlices - 1 {
		last = last.Add(-step).Truncate(time.Microsecond)
		part := rest
		part.Since, rest.Until = last, last
		parts = append(parts, part)
	}
	return append(parts, rest)
}
