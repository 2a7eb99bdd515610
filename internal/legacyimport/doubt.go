package legacyimport

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// Doubt is an old table that was taken over, and of which something may not be known here.
type Doubt struct {
	Table string // DATABASE.TABLE
	Why   string
	Sure  bool // false: it could not be found out
}

func (d Doubt) String() string { return d.Table + " " + d.Why }

// errLong ends a look that takes too long.
var errLong = errors.New("the look takes too long")

// Doubts looks at the old tables of which passes went into a group of this log, for a time at each: those of which no
// last pass has come to its end, and those that were written to after it.
func Doubts(ctx context.Context, records *dedup.Log, db *sql.DB, group string, most time.Duration) ([]Doubt, error) {
	notes, err := records.Waypoints(ctx, waypoints)
	if err != nil {
		return nil, err
	}
	var doubts []Doubt
	for _, note := range notes {
		var s state
		if err := json.Unmarshal(note, &s); err != nil || s.Into != records.Options().Table || s.Group != group {
			continue // another version's, or another log's
		}
		d, err := s.doubt(ctx, db, most)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", s.From, err)
		}
		if d.Why != "" {
			doubts = append(doubts, d)
		}
	}
	return doubts, nil
}

// doubt has no Why when there is none. Rows that were deleted since are none: a table is cleaned for many reasons.
func (s *state) doubt(ctx context.Context, db *sql.DB, most time.Duration) (Doubt, error) {
	d := Doubt{Table: s.From, Sure: true}
	shape, err := inspect(ctx, db, s.From)
	last := s.Last && s.Done
	switch gone := errors.Is(err, ErrTable); {
	case err != nil && !gone:
		return d, err
	case !last:
		d.Why, d.Sure = "was taken over, and no last pass has come to its end since", !gone
		return d, nil
	case gone:
		d.Why, d.Sure = "was taken over, and now it is gone, or this account may not read it", false
		return d, nil
	case s.Seen == nil:
		return d, nil // the last pass was an older version's
	}
	until, read := time.Now().Add(most), 0
	visit := func(uint64, []sql.RawBytes) {}
	next := func(rows int, _ time.Time) error {
		if read = rows; time.Now().After(until) {
			return errLong
		}
		return nil
	}
	if len(s.At) != len(shape.primary) { // the table was empty, or has another key by now
		s.At = nil
	}
	behind, err := shape.looking(ctx, s.Asked, s.At, lookRows, visit, next) // where new rows often are
	if err != nil && !errors.Is(err, errLong) {
		return d, err
	}
	all, err := shape.looking(ctx, s.Asked, nil, lookRows, visit, next)
	switch {
	case err != nil && !errors.Is(err, errLong):
		return d, err
	case behind.Rows > 0, later(all.Newest, s.Seen.Newest):
		d.Why = fmt.Sprintf("has rows that are newer than its last pass: the newest time is %s, it was %s; %d rows are "+
			"behind the last one of then", all.Newest, s.Seen.Newest, behind.Rows)
	case err != nil:
		d.Why, d.Sure = fmt.Sprintf("is too large to look through in %v: nothing is newer than its last pass among %d rows",
			most, read), false
	case all.Rows > s.Seen.Rows || all.Rows == s.Seen.Rows && all.Sum != s.Seen.Sum:
		d.Why = fmt.Sprintf("was written to after its last pass: it had %d rows and has %d, or one was changed",
			s.Seen.Rows, all.Rows)
	}
	return d, nil
}
