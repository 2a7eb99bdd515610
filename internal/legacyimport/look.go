package legacyimport

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
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
	total, one, read := fnv.New64a(), fnv.New64a(), 0
	var head []byte
	columns := append(s.common(), "CRC32("+s.text(colRemark)+")", "CRC32("+s.text(colBody)+")")
	err = s.pages(ctx, columns, after, size, func(row []sql.RawBytes) {
		read++
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
	}, func(began time.Time, last bool) error {
		if last {
			return nil
		}
		return next(read, began)
	})
	l.Sum = total.Sum64()
	return l, err
}

// later compares two times of one column as they stand there: a text of one length, or a number.
func later(a, b string) bool { return len(a) > len(b) || len(a) == len(b) && a > b }

// look looks at the whole table, before or after a last pass.
func (p *pass) look(ctx context.Context, visit func(uint64, []sql.RawBytes)) (look, error) {
	size := cmp.Or(p.page, lookRows)
	return p.shape.looking(ctx, p.state.Asked, nil, size, visit, func(rows int, began time.Time) error {
		p.Progress(Progress{Looking: true, Rows: rows, About: p.shape.rows})
		return p.rest(ctx, began, false)
	})
}

// compare looks at the table again and finds out whether it is as it was before the pass, which has read it in between:
// then the pass has taken over what is there now, and nobody wrote for as long.
func (p *pass) compare(ctx context.Context, before []uint64) error {
	slices.Sort(before)
	changed, example, at := 0, "", ""
	after, err := p.look(ctx, func(mark uint64, old []sql.RawBytes) {
		if _, same := slices.BinarySearch(before, mark); same {
			return
		}
		if changed++; changed == 1 {
			example = fmt.Sprintf("%s %q (status %s)", old[atTag], old[atKey], old[atStatus])
			at = strings.Clone(string(old[atTime]))
		}
	})
	if err != nil {
		return err
	}
	p.state.Seen = &after
	if newest, err := parseTime(after.Newest, p.zone()); err == nil {
		p.shape.note("the newest time in it, read as %v, is %s", p.zone(), newest.UTC().Format(time.RFC3339))
	}
	gone := len(before) - (after.Rows - changed)
	if p.report.Late = max(changed, gone); p.report.Late == 0 {
		return nil
	}
	why := fmt.Sprintf("somebody wrote to the old table: it had %d rows before the pass and has %d; %d are new or "+
		"changed, and of those before %d are changed or gone", len(before), after.Rows, changed, gone)
	if example != "" {
		why += ", such as " + example
	}
	read, err := parseTime(at, p.zone())
	if ago := p.now().Sub(read); err == nil && ago > leastZone {
		why += fmt.Sprintf(", whose time is %v ago: if that is when it was written, --time-zone is wrong too",
			ago.Round(time.Second))
	}
	p.report.NotLast = why + ". End the old consumer, and make the last pass again"
	return nil
}
