package dedup

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

	tags []string // where keys are asked for and no tag: all that the group has, for the primary key to find them
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
	p := new(pageEnd)
	text, err := base64.RawURLEncoding.DecodeString(string(c))
	if err == nil {
		err = json.Unmarshal(text, p)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCursor, err)
	}
	return p, nil
}

func cursorAt(r Row) Cursor {
	return (&pageEnd{r.Status, r.At.UnixMicro(), []byte(r.Tag), []byte(r.Key)}).cursor()
}

func (p *pageEnd) cursor() Cursor {
	text, _ := json.Marshal(p) // which has a JSON form
	return Cursor(base64.RawURLEncoding.EncodeToString(text))
}

// List reads a page of rows: by status in the order of their numbers, within a status the latest first, or the oldest.
// The cursor is empty after the last page. Each page is read through an index, however large the log is. A row that
// moves while somebody pages may be seen twice or not at all.
func (l *Log) List(ctx context.Context, f Filter) (found []Row, next Cursor, err error) {
	after, err := f.After.pageEnd()
	if err == nil {
		err = l.complete(ctx, &f)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list: %w", err)
	}
	columns := rowColumns
	if f.Bodies {
		columns = wholeColumns
	}
	for _, status := range f.Statuses {
		if after != nil && status < after.Status {
			continue
		}
		if after != nil && status > after.Status {
			after = nil
		}
		rows, err := l.rows(ctx, l.listText(f, columns, status, after, f.Limit+1-len(found)))
		if err != nil {
			return nil, "", fmt.Errorf("list rows in %v: %w", status, err)
		}
		if found = append(found, rows...); len(found) > f.Limit {
			return found[:f.Limit], cursorAt(found[f.Limit-1]), nil
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
func (l *Log) Look(
	ctx context.Context, f Filter, through int, also func(Row) bool,
) (found []Row, next Cursor, err error) {
	if err := f.check(); err != nil {
		return nil, "", fmt.Errorf("look: %w", err)
	}
	f.Bodies = false
	if also == nil && (len(f.Keys) > 0 || !f.searches()) {
		return l.List(ctx, f)
	}
	through = cmp.Or(through, math.MaxInt)
	wide := f
	wide.Reasons, wide.Remark = nil, ""
	if also == nil && len(f.Statuses) == 1 { // the server does it all, with a fifth of the work
		wide.Body, wide.Fields = "", nil
		if f.upTo, err = l.rowAt(ctx, wide, through); err != nil {
			return nil, "", fmt.Errorf("look through %d rows: %w", through, err)
		}
		found, next, err := l.List(ctx, f)
		if err == nil && next == "" && f.upTo != nil {
			next = f.upTo.cursor()
		}
		return found, next, err
	}
	for looked, more := 0, true; more && looked < through; more = wide.After != "" {
		wide.Limit = min(lookedAt, through-looked)
		rows, next, err := l.List(ctx, wide)
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
				next = cursorAt(row)
			}
			return found, next, nil
		}
		looked, wide.After = looked+len(rows), next
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
	s := l.listText(f, since+"consumer_timestamp), msg_tag, msg_key", end.Status, after, 1)
	s.add(" OFFSET ?", n-1)
	err = s.scan(ctx, l.db, &end.At, &end.Tag, &end.Name)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return end, err
}

func (f *Filter) check() error {
	if f.Limit = cmp.Or(f.Limit, defaultListed); f.Limit < 1 || f.Limit > MaxListed {
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

// complete is check, and reads the group's tags where they are needed.
func (l *Log) complete(ctx context.Context, f *Filter) (err error) {
	if err := f.check(); err != nil || len(f.Keys) == 0 || f.Tag != "" {
		return err
	}
	f.tags, err = l.Tags(ctx, f.Group)
	return err
}

// listText is the query for one status. The index on status and time ends, like every InnoDB index, in the primary key.
func (l *Log) listText(f Filter, columns string, status Status, from *pageEnd, limit int) (s statement) {
	s.add("SELECT " + columns + " FROM " + l.table)
	s.choose(f, status)
	behind, before, order := "<", ">", " DESC"
	if f.Oldest {
		behind, before, order = ">", "<", ""
	}
	if from != nil {
		s.beyond(behind, "(msg_tag, msg_key) "+behind+" (?, ?)", from.At, from.Tag, from.Name)
	}
	if f.upTo != nil {
		s.beyond(before, "(msg_tag, msg_key) "+before+"= (?, ?)", f.upTo.At, f.upTo.Tag, f.upTo.Name)
	}
	s.add(" ORDER BY consumer_timestamp" + order + ", msg_tag" + order + ", msg_key" + order)
	s.add(" LIMIT ?", limit)
	return s
}

// beyond adds the condition that a row stands on one side of another one, by its time, and where that is the same by
// its key.
func (s *statement) beyond(side, key string, at int64, keyArgs ...any) {
	s.add(" AND consumer_timestamp "+side+"= "+microTime, at)
	s.add(" AND (consumer_timestamp "+side+" "+microTime, at)
	s.add(" OR "+key+")", keyArgs...)
}

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
		among(s, "msg_key", f.Keys)
	}
	if len(f.tags) > 0 {
		among(s, "msg_tag", f.tags)
	}
	if len(f.Reasons) > 0 {
		among(s, "reason", f.Reasons)
	}
	for _, end := range []struct {
		side string
		at   time.Time
	}{{">=", f.Since}, {"<", f.Until}, {"<=", f.UpTo}} {
		if !end.at.IsZero() {
			s.add(" AND consumer_timestamp "+end.side+" "+microTime, end.at.UnixMicro())
		}
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
func among[T ~string](s *statement, column string, values []T) {
	s.add(" AND " + column + " IN (NULL")
	for _, v := range values {
		s.add(", ?", []byte(v))
	}
	s.add(")")
}

// MaxCounted is where CountDead stops counting.
const MaxCounted = 100_000

// CountDead is the number of rows in Dead, MaxCounted at most, so that looking never takes long. It reads an index
// only.
func (l *Log) CountDead(ctx context.Context) (_ int, err error) {
	defer wrap(&err, "count the rows in %v", Dead)
	return l.count(ctx, sqlOf("SELECT 1 FROM "+l.table+" WHERE consumer_status = ?", int(Dead)), MaxCounted)
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
	defer wrap(&err, "count rows in %v", f.Statuses[0])
	var s statement
	s.add("SELECT COUNT(*), COALESCE(SUM(? > 0 AND replays >= ?), 0) FROM (SELECT replays FROM "+l.table, spent, spent)
	s.choose(f, f.Statuses[0])
	s.add(" LIMIT ?) AS some", most)
	err = s.scan(ctx, l.db, &all, &often)
	return all, often, err
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
func (l *Log) CountReasons(ctx context.Context, f Filter) (_ []ReasonCount, err error) {
	defer wrap(&err, "count by reason")
	f.Limit = 0
	if err := f.check(); err != nil {
		return nil, err
	}
	counts, err := list(ctx, l.db, l.reasonsText(f), func(c *ReasonCount) []any {
		return []any{&c.Reason, &c.Count, utc{&c.Oldest}, utc{&c.Newest}}
	})
	if err != nil {
		return nil, err
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
		rows, err := l.rows(ctx, sqlOf("SELECT "+rowColumns+" FROM "+l.table+" FORCE INDEX (by_status) "+
			"WHERE consumer_status = ? AND group_name = ? ORDER BY consumer_timestamp LIMIT 1", int(status), []byte(group)))
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
