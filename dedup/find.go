package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"
)

// Search is how far a bounded look through the log came.
type Search struct {
	Seen int  // rows that were looked at
	All  bool // these were all
}

// Mentioning finds the identities of one tag whose remark, or whose story, holds a text: what could not be identified
// is filed under a key of rollbackd's own, and only its remark names the original. Of rows and of events it looks at
// most at each, in the order of the primary key.
func (l *Log) Mentioning(ctx context.Context, group, tag, text string, most int) ([]Identity, Search, error) {
	s := Search{All: true}
	var names []string
	for _, part := range []struct{ table, index, column string }{
		{l.table, "PRIMARY", "remark"}, {l.events, "by_identity", "error"},
	} {
		some := "(SELECT msg_key, " + part.column + " AS words FROM " + part.table + " FORCE INDEX (" + part.index + ")" +
			" WHERE group_name = ? AND msg_tag = ? ORDER BY msg_key LIMIT ?) AS some"
		args := []any{[]byte(group), []byte(tag), most}
		var seen int
		if err := l.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+some, args...).Scan(&seen); err != nil {
			return nil, s, fmt.Errorf("count what is filed under %s: %w", tag, err)
		}
		s.Seen, s.All = s.Seen+seen, s.All && seen < most
		if seen == 0 {
			continue
		}
		err := l.query(ctx, func(rows *sql.Rows) error {
			var name string
			err := rows.Scan(&name)
			names = append(names, name)
			return err
		}, "SELECT DISTINCT msg_key FROM "+some+" WHERE LOCATE(?, words) > 0", append(args, text)...)
		if err != nil {
			return nil, s, fmt.Errorf("look for %q in what is filed under %s: %w", text, tag, err)
		}
	}
	slices.Sort(names)
	var keys []Identity
	for _, name := range slices.Compact(names) {
		keys = append(keys, Identity{group, tag, name})
	}
	return keys, s, nil
}

// bodiesPerQuery bounds how many bodies, of 256 KiB at most, are looked through by one statement.
const bodiesPerQuery = 300

// Holding calls each with every row whose body holds one of the words: of the latest rows in each of the states, at
// most so many per state. Rows in success keep no body.
func (l *Log) Holding(
	ctx context.Context, group string, states []Status, words [][]byte, most int, each func(Row) error,
) (Search, error) {
	s := Search{All: true}
	for _, status := range states {
		f := Filter{Group: group, Statuses: []Status{status}, Limit: MaxListed}
		for left := most; ; {
			rows, next, err := l.List(ctx, f)
			if err != nil {
				return s, err
			}
			if len(rows) > left {
				rows, next = rows[:left], "more"
			}
			for some := range slices.Chunk(rows, bodiesPerQuery) {
				if err := l.holding(ctx, some, words, each); err != nil {
					return s, fmt.Errorf("look into the bodies of %d rows in %v: %w", len(some), status, err)
				}
			}
			s.Seen += len(rows)
			left -= len(rows)
			if next == "" {
				break
			}
			if left <= 0 {
				s.All = false
				break
			}
			f.After = next
		}
	}
	return s, nil
}

func (l *Log) holding(ctx context.Context, among []Row, words [][]byte, each func(Row) error) error {
	if len(among) == 0 || len(words) == 0 {
		return nil
	}
	var q statement
	q.add("SELECT " + rowColumns + ", msg_id, msg_body, properties FROM " + l.table + " FORCE INDEX (PRIMARY) WHERE " +
		"(group_name, msg_tag, msg_key) IN (")
	for i, r := range among {
		if i > 0 {
			q.add(", ")
		}
		q.add("(?, ?, ?)", keyArgs(r.Identity)...)
	}
	q.add(") AND (FALSE")
	for _, w := range words {
		q.add(" OR LOCATE(?, msg_body) > 0", w)
	}
	q.add(")")
	var found []Row
	err := l.query(ctx, func(rows *sql.Rows) error {
		r, err := l.scanWhole(rows)
		found = append(found, r)
		return err
	}, q.String(), q.args...)
	if err != nil {
		return err
	}
	for _, r := range found {
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

// scanWhole reads what Read reads.
func (l *Log) scanWhole(rows *sql.Rows) (Row, error) {
	var id sql.NullString
	var body, properties []byte
	r, err := l.scanRow(rows, &id, &body, &properties)
	r.MessageID, r.Body, r.Properties = id.String, body, properties
	return r, err
}

// Groups are the groups that have rows, read by jumping from one to the next in the primary key; at most so many.
func (l *Log) Groups(ctx context.Context, most int) (groups []string, err error) {
	last := []byte{}
	for len(groups) < most {
		n := len(groups)
		err := l.query(ctx, func(rows *sql.Rows) error {
			var name []byte
			err := rows.Scan(&name)
			last = name
			groups = append(groups, string(name))
			return err
		}, "SELECT group_name FROM "+l.table+" WHERE group_name > ? ORDER BY group_name LIMIT 1", last)
		if err != nil {
			return nil, fmt.Errorf("list the groups: %w", err)
		}
		if len(groups) == n {
			break
		}
	}
	return groups, nil
}

// Tags are the tags of a group; an error when there are more than a thousand.
func (l *Log) Tags(ctx context.Context, group string) ([]string, error) {
	tags, err := l.tags(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("list the tags of group %s: %w", group, err)
	}
	names := make([]string, len(tags))
	for i, t := range tags {
		names[i] = string(t)
	}
	return names, nil
}

// Overdue is how long ago the lease of a claimed row ended or the next attempt of a failed one became due; 0 for a row
// that waits yet, or for nothing.
func (l *Log) Overdue(r Row) time.Duration {
	switch r.Status {
	case Processing:
		return max(0, r.Age-l.o.Lease)
	case Failed:
		return max(0, r.Age-l.delay(r.Attempts))
	}
	return 0
}
