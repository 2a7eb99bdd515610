package dedup

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter chooses rows for a person.
type Filter struct {
	Group    string    // required
	Statuses []Status  // none: all
	Tag      string    // "": all
	Keys     []string  // none: all; at most MaxListedKeys
	Reasons  []Reason  // none: all
	Since    time.Time // last transition at or after; zero: any
	Until    time.Time // last transition before; zero: any
	UpTo     time.Time // last transition then or before; zero: any
	Remark   string    // the remark holds this text; "": any. No index helps to find it
	Body     string    // the body, as far as it is kept, holds this text; "": any. No index helps to find it
	Fields   []Field   // the body has all of these; no index helps
	Limit    int       // 1 to MaxListed; 0 means 100
	After    Cursor    // where the last page ended; "" for the first
	Bodies   bool      // read also what each row keeps of its message, as Read does
	Oldest   bool      // within a status the oldest first

	upTo *pageEnd // no further than this row; nil: to the end
}

// Cursor is where a page of List ended. It is opaque, and good for the same filter only.
type Cursor string

// MaxListed bounds one page.
const MaxListed = 1000

// MaxListedKeys bounds the keys of one Filter.
const MaxListedKeys = 1000

const defaultListed = 100

// pageEnd is the row at which a page ended.
type pageEnd struct {
	Status Status `json:"s"`
	At     int64  `json:"a"` // microseconds since 1970
	Tag    []byte `json:"t"`
	Name   []byte `json:"k"`
}

// ErrCursor says that a cursor is not one of List's.
var ErrCursor = errors.New("not a cursor of this list")

func (c Cursor) pageEnd() (*pageEnd, error) {
	if c == "" {
		return nil, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(string(c))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCursor, err)
	}
	p := new(pageEnd)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCursor, err)
	}
	return p, nil
}

func cursorAt(r Row) (Cursor, error) {
	return (&pageEnd{r.Status, r.At.UnixMicro(), []byte(r.Tag), []byte(r.Key)}).cursor()
}

func (p *pageEnd) cursor() (Cursor, error) {
	text, err := json.Marshal(p)
	return Cursor(base64.RawURLEncoding.EncodeToString(text)), err
}

// List reads a page of rows: by status in the order of their numbers, within a status the latest first, or the oldest.
// The cursor is empty after the last page. Each page is read through an index, however large the log is. A row that
// moves while somebody pages may be seen twice or not at all.
func (l *Log) List(ctx context.Context, f Filter) ([]Row, Cursor, error) {
	after, err := f.After.pageEnd()
	if err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	if err := f.check(); err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	var tags [][]byte
	if len(f.Keys) > 0 && f.Tag == "" {
		if tags, err = l.tags(ctx, f.Group); err != nil {
			return nil, "", fmt.Errorf("list the tags of group %s: %w", f.Group, err)
		}
	}
	var found []Row
	for _, status := range f.Statuses {
		if after != nil && status < after.Status {
			continue
		}
		from := after
		if after != nil && status > after.Status {
			from = nil
		}
		columns, scan := rowColumns, func(rows *sql.Rows) (Row, error) { return l.scanRow(rows) }
		if f.Bodies {
			columns, scan = rowColumns+", msg_id, msg_body, properties", l.scanWhole
		}
		s := l.listText(f, columns, status, tags, from, f.Limit+1-len(found))
		err := l.query(ctx, func(rows *sql.Rows) error {
			r, err := scan(rows)
			found = append(found, r)
			return err
		}, s.String(), s.args...)
		if err != nil {
			return nil, "", fmt.Errorf("list rows in %v: %w", status, err)
		}
		if len(found) > f.Limit {
			next, err := cursorAt(found[f.Limit-1])
			return found[:f.Limit], next, err
		}
	}
	return found, "", nil
}

// lookedAt is how many rows Look reads at a time.
const lookedAt = 500

// Look is List for somebody who waits: no index leads to reasons and remarks, so List may go through all rows of a
// status before it has a page. Look goes through so many rows at most and may so find less than a page, or nothing, and
// all the same a cursor from where to look further; 0: through all. Also, if not nil, chooses besides. It reads no
// bodies.
func (l *Log) Look(ctx context.Context, f Filter, through int, also func(Row) bool) ([]Row, Cursor, error) {
	if err := f.check(); err != nil {
		return nil, "", fmt.Errorf("look: %w", err)
	}
	f.Bodies = false
	if also == nil && (through == 0 || len(f.Keys) > 0 || !f.searches()) {
		return l.listAll(ctx, f)
	}
	wide, found := f, []Row(nil)
	if through > 0 { // else each page may take as long as it wants
		wide.Reasons, wide.Remark = nil, ""
	}
	if also == nil && len(f.Statuses) == 1 { // the server does it all, with a fifth of the work
		wide.Body, wide.Fields = "", nil
		end, err := l.rowAt(ctx, wide, through)
		if err != nil {
			return nil, "", fmt.Errorf("look through %d rows: %w", through, err)
		}
		f.upTo = end
		found, next, err := l.List(ctx, f)
		if err == nil && next == "" && end != nil {
			next, err = end.cursor()
		}
		return found, next, err
	}
	for looked := 0; through == 0 || looked < through; {
		if wide.Limit = lookedAt; through > 0 {
			wide.Limit = min(lookedAt, through-looked)
		}
		rows, next, err := l.listAll(ctx, wide)
		if err != nil {
			return nil, "", err
		}
		for i, row := range rows {
			if len(f.Reasons) > 0 && !slices.Contains(f.Reasons, row.Reason) || !strings.Contains(row.Remark, f.Remark) ||
				also != nil && !also(row) {
				continue
			}
			if found = append(found, row); len(found) < f.Limit {
				continue
			}
			if i < len(rows)-1 {
				next, err = cursorAt(row)
			}
			return found, next, err
		}
		if looked, wide.After = looked+len(rows), next; next == "" {
			break
		}
	}
	return found, wide.After, nil
}

// rowAt is the nth row that f chooses in its one status, from 1; nil when there are fewer. It reads the index alone.
func (l *Log) rowAt(ctx context.Context, f Filter, n int) (*pageEnd, error) {
	after, err := f.After.pageEnd()
	if err != nil {
		return nil, err
	}
	end := &pageEnd{Status: f.Statuses[0]}
	s := l.listText(f, "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp), msg_tag, msg_key", end.Status, nil,
		after, 1)
	s.add(" OFFSET ?", n-1)
	err = l.db.QueryRowContext(ctx, s.String(), s.args...).Scan(&end.At, &end.Tag, &end.Name)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return end, err
}

func (f *Filter) check() error {
	if f.Limit == 0 {
		f.Limit = defaultListed
	}
	if f.Limit < 1 || f.Limit > MaxListed {
		return fmt.Errorf("a limit of %d: want 1 to %d", f.Limit, MaxListed)
	}
	if f.Group == "" {
		return errors.New("no group")
	}
	if len(f.Keys) > MaxListedKeys {
		return fmt.Errorf("%d keys: at most %d", len(f.Keys), MaxListedKeys)
	}
	if len(f.Statuses) == 0 {
		f.Statuses = Statuses()
		return nil
	}
	f.Statuses = slices.Compact(slices.Sorted(slices.Values(f.Statuses)))
	return nil
}

// listText is the query for one status. The index on status and time ends, like every InnoDB index, in the primary key.
func (l *Log) listText(
	f Filter, columns string, status Status, tags [][]byte, from *pageEnd, limit int,
) (s statement) {
	s.add("SELECT " + columns + " FROM " + l.table)
	s.choose(f, status)
	if len(f.Keys) > 0 && f.Tag == "" {
		s.among("msg_tag", tags) // with the tags, the primary key finds it
	}
	behind, before, order := "<", ">", " DESC"
	if f.Oldest {
		behind, before, order = ">", "<", ""
	}
	if from != nil {
		s.add(" AND consumer_timestamp "+behind+"= "+micros, from.At)
		s.add(" AND (consumer_timestamp "+behind+" "+micros, from.At)
		s.add(" OR (msg_tag, msg_key) "+behind+" (?, ?))", from.Tag, from.Name)
	}
	if f.upTo != nil {
		s.add(" AND consumer_timestamp "+before+"= "+micros, f.upTo.At)
		s.add(" AND (consumer_timestamp "+before+" "+micros, f.upTo.At)
		s.add(" OR (msg_tag, msg_key) "+before+"= (?, ?))", f.upTo.Tag, f.upTo.Name)
	}
	s.add(" ORDER BY consumer_timestamp" + order + ", msg_tag" + order + ", msg_key" + order)
	s.add(" LIMIT ?", limit)
	return s
}

// micros turns microseconds since 1970 into a time.
const micros = "TIMESTAMP'1970-01-01 00:00:00' + INTERVAL ? MICROSECOND"

// searches reports whether there is a condition that no index leads to.
func (f Filter) searches() bool {
	return len(f.Reasons) > 0 || f.Remark != "" || f.Body != "" || len(f.Fields) > 0
}

// choose adds the conditions of a filter for one status.
func (s *statement) choose(f Filter, status Status) {
	s.add(" WHERE group_name = ?", []byte(f.Group))
	s.add(" AND consumer_status = ?", int(status))
	if f.Tag != "" {
		s.add(" AND msg_tag = ?", []byte(f.Tag))
	}
	if len(f.Keys) > 0 {
		s.among("msg_key", asBytes(f.Keys))
	}
	if len(f.Reasons) > 0 {
		s.among("reason", asBytes(f.Reasons))
	}
	if !f.Since.IsZero() {
		s.add(" AND consumer_timestamp >= "+micros, f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		s.add(" AND consumer_timestamp < "+micros, f.Until.UnixMicro())
	}
	if !f.UpTo.IsZero() {
		s.add(" AND consumer_timestamp <= "+micros, f.UpTo.UnixMicro())
	}
	if f.Remark != "" {
		s.add(" AND LOCATE(?, remark) > 0", f.Remark)
	}
	if f.Body != "" {
		s.add(" AND LOCATE(?, msg_body) > 0", []byte(f.Body))
	}
	for _, field := range f.Fields {
		field.choose(s)
	}
}

// among adds the condition that a column has one of values; none of none.
func (s *statement) among(column string, values [][]byte) {
	s.add(" AND " + column + " IN (NULL")
	for _, v := range values {
		s.add(", ?", v)
	}
	s.add(")")
}

func asBytes[T ~string](texts []T) [][]byte {
	b := make([][]byte, len(texts))
	for i, t := range texts {
		b[i] = []byte(t)
	}
	return b
}

// tags are the tags of a group, read by jumping from one to the next in the primary key.
func (l *Log) tags(ctx context.Context, group string) (tags [][]byte, err error) {
	const tooMany = 1000
	last := []byte{}
	for len(tags) < tooMany {
		rows, err := l.db.QueryContext(ctx, "SELECT msg_tag FROM "+l.table+
			" WHERE group_name = ? AND msg_tag > ? ORDER BY msg_tag LIMIT 1", []byte(group), last)
		if err != nil {
			return nil, err
		}
		found := rows.Next()
		if found {
			err = rows.Scan(&last)
		}
		if err = errors.Join(err, rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
		if !found {
			return tags, nil
		}
		tags = append(tags, slices.Clone(last))
	}
	return nil, fmt.Errorf("more than %d tags: name one", tooMany)
}

// OldestOpen is the age of the oldest row in each state that has one, or of the one that is furthest ahead of the
// database's clock. Index lookups only.
func (l *Log) OldestOpen(ctx context.Context) (map[Status]time.Duration, error) {
	ages := make(map[Status]time.Duration)
	for _, status := range []Status{Processing, Failed, Dead} {
		text := "SELECT GREATEST(TIMESTAMPDIFF(MICROSECOND, MIN(consumer_timestamp), UTC_TIMESTAMP(6)), " +
			"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MAX(consumer_timestamp))) FROM " + l.table +
			" WHERE consumer_status = ?"
		var age *int64
		if err := l.db.QueryRowContext(ctx, text, int(status)).Scan(&age); err != nil {
			return nil, fmt.Errorf("read the oldest row in %v: %w", status, err)
		}
		if age != nil {
			ages[status] = time.Duration(*age) * time.Microsecond
		}
	}
	return ages, nil
}
