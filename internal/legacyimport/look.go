package legacyimport

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// lookRows is how many rows a page of a look has at most; they are short.
	lookRows = 10 * pageRows
	// quiet is how long nobody may have written to the old table before a pass was the last one. What the old consumer
	// does less often than that is not noticed by the pass.
	quiet = 10 * time.Second
)

// look is what the old table held when it was looked at, of the groups that were asked for. It is in the waypoint's
// note, so it must be the same for the same rows in all versions.
type look struct {
	Rows   int    `json:"rows"`
	Sum    uint64 `json:"sum"`    // of all that they hold, in the order of the primary key
	Newest string `json:"newest"` // their newest time, as it stands there
}

// looking reads the table behind a row, and visits the rows of the groups that were asked for, each with a number that
// is another one when anything of it is. After each page but the last it calls next, whose error ends it.
func (s *shape) looking(ctx context.Context, asked []string, after [][]byte, size int,
	visit func(mark uint64, old []sql.RawBytes), next func(rows int, began time.Time) error) (l look, err error) {
	total, one := fnv.New64a(), fnv.New64a()
	var head []byte
	columns := append(s.common(), "CRC32("+s.text(colRemark)+")", "CRC32("+s.text(colBody)+")")
	err = s.pages(ctx, columns, after, size, func(row []sql.RawBytes) {
		old := row[len(s.primary):]
		if old[atGroup] == nil || !slices.Contains(asked, string(old[atGroup])) {
			return
		}
		one.Reset()
		for _, column := range row {
			head = binary.AppendVarint(head[:0], int64(len(column)))
			if column == nil {
				head[0] = 1 // that of -1
			}
			one.Write(head)
			one.Write(column)
		}
		total.Write(one.Sum(head[:0]))
		l.Rows++
		if at := string(old[atTime]); later(at, l.Newest) {
			l.Newest = at
		}
		visit(one.Sum64(), old)
	}, func() error { return nil }, next)
	l.Sum = total.Sum64()
	return l, err
}

// later compares two times of one column as they stand there: a text of one length, or a number.
func later(a, b string) bool { return len(a) > len(b) || len(a) == len(b) && a > b }

// look looks at the whole table, before or behind a last pass.
func (p *pass) look(ctx context.Context, visit func(uint64, []sql.RawBytes)) (look, error) {
	size := cmp.Or(p.page, lookRows)
	return p.shape.looking(ctx, p.state.Asked, nil, size, visit, func(rows int, began time.Time) error {
		p.Progress(Progress{Looking: true, Rows: rows, About: p.shape.rows})
		return p.rest(ctx, began)
	})
}

// lookBefore notes what the table holds before a last pass.
func (p *pass) lookBefore(ctx context.Context) (err error) {
	if p.LastPass {
		_, err = p.look(ctx, func(mark uint64, _ []sql.RawBytes) { p.marks = append(p.marks, mark) })
	}
	p.looked = time.Now()
	return err
}

// lookBehind looks at the table again and finds out whether it is as it was before a last pass, which has read it in
// between: then the pass has taken over what is there now, and nobody wrote for as long.
func (p *pass) lookBehind(ctx context.Context) error {
	if !p.LastPass {
		return nil
	}
	if err := wait.For(ctx, p.quiet-time.Since(p.looked)); err != nil {
		return err
	}
	slices.Sort(p.marks)
	changed, example, at := 0, "", ""
	after, err := p.look(ctx, func(mark uint64, old []sql.RawBytes) {
		if _, same := slices.BinarySearch(p.marks, mark); same {
			return
		}
		if changed++; changed == 1 {
			example = fmt.Sprintf(", such as %s %q (status %s)", old[atTag], old[atKey], old[atStatus])
			at = string(old[atTime])
		}
	})
	if err != nil {
		return err
	}
	p.state.Seen = &after
	if newest, err := parseTime(after.Newest, p.Zone); err == nil {
		p.shape.note("the newest time in it, read as %v, is %s", p.Zone, newest.UTC().Format(time.RFC3339))
	}
	gone := len(p.marks) - (after.Rows - changed)
	if p.report.Late = max(changed, gone); p.report.Late == 0 {
		if n := p.state.Counts[OtherZone]; n > 0 {
			p.report.NotLast = fmt.Sprintf("%d rows have a time that is up to 26 hours in the future, so the zone of %s is "+
				"another one. Make the last pass again with the right --time-zone", n, colTime)
		}
		return nil
	}
	why := fmt.Sprintf("somebody wrote to the old table: it had %d rows before the pass and has %d; %d are new or "+
		"changed, and of those before %d are changed or gone%s", len(p.marks), after.Rows, changed, gone, example)
	written, err := parseTime(at, p.Zone)
	if ago := p.shape.now().Sub(written); err == nil && ago > leastZone {
		why += fmt.Sprintf(", whose time is %v ago: if that is when it was written, --time-zone is wrong too",
			ago.Round(time.Second))
	}
	p.report.NotLast = why + ". End the old consumer, and make the last pass again"
	return nil
}

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
	doubt := func(sure bool, format string, args ...any) (Doubt, error) {
		return Doubt{s.From, fmt.Sprintf(format, args...), sure}, nil
	}
	shape, err := inspect(ctx, db, s.From)
	switch gone := errors.Is(err, ErrTable); {
	case err != nil && !gone:
		return Doubt{}, err
	case !s.Last || !s.Done:
		return doubt(!gone, "was taken over, and no last pass has come to its end since")
	case gone:
		return doubt(false, "was taken over, and now it is gone, or this account may not read it")
	case s.Seen == nil: // the last pass was an older version's
		return Doubt{}, nil
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
	var all look
	if err == nil || errors.Is(err, errLong) {
		all, err = shape.looking(ctx, s.Asked, nil, lookRows, visit, next)
	}
	switch long := errors.Is(err, errLong); {
	case err != nil && !long:
		return Doubt{}, err
	case behind.Rows > 0, later(all.Newest, s.Seen.Newest):
		return doubt(true, "has rows that are newer than its last pass: the newest time is %s, it was %s; %d rows are "+
			"behind the last one of then", all.Newest, s.Seen.Newest, behind.Rows)
	case long:
		return doubt(false, "is too large to look through in %v: nothing is newer than its last pass among %d rows", most,
			read)
	case all.Rows > s.Seen.Rows || all.Rows == s.Seen.Rows && all.Sum != s.Seen.Sum:
		return doubt(true, "was written to after its last pass: it had %d rows and has %d, or one was changed", s.Seen.Rows,
			all.Rows)
	}
	return Doubt{}, nil
}
