package dedup

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// What runs over many rows ask, which outlive the process that began them: see internal/operator.

// ReadAll reads the rows of all keys with what each keeps of its message; one that has none is Absent.
func (l *Log) ReadAll(ctx context.Context, keys []Identity) (map[Identity]Row, error) {
	const some = 50 // bodies of 256 KiB at most
	found := make(map[Identity]Row, len(keys))
	for _, k := range keys {
		found[k] = absent(k)
	}
	for rest := keys; len(rest) > 0; {
		n := min(some, len(rest))
		var s statement
		s.add("SELECT " + rowColumns + ", msg_id, msg_body, properties FROM " + l.table + " FORCE INDEX (PRIMARY) WHERE " +
			"(group_name, msg_tag, msg_key) IN (")
		for i, k := range rest[:n] {
			if i > 0 {
				s.add(", ")
			}
			s.add("(?, ?, ?)", keyArgs(k)...)
		}
		s.add(")")
		if err := l.query(ctx, func(rows *sql.Rows) error {
			r, err := l.scanWhole(rows)
			found[r.Identity] = r
			return err
		}, s.String(), s.args...); err != nil {
			return nil, fmt.Errorf("read %d rows from %v: %w", n, rest[0], err)
		}
		rest = rest[n:]
	}
	return found, nil
}

// Count is how many rows in f's first status f chooses, most at most, and how many of them were reopened spent times or
// more; 0 asks for none. It looks at no more rows than there are in that status.
func (l *Log) Count(ctx context.Context, f Filter, spent, most int) (all, often int, err error) {
	f.Limit = 0
	if err := f.check(); err != nil {
		return 0, 0, fmt.Errorf("count: %w", err)
	}
	var s statement
	s.add("SELECT COUNT(*), COALESCE(SUM(? > 0 AND replays >= ?), 0) FROM (SELECT replays FROM "+l.table, spent, spent)
	s.choose(f, f.Statuses[0])
	if len(f.Keys) > 0 && f.Tag == "" {
		tags, err := l.tags(ctx, f.Group)
		if err != nil {
			return 0, 0, fmt.Errorf("list the tags of group %s: %w", f.Group, err)
		}
		s.among("msg_tag", tags)
	}
	s.add(" LIMIT ?) AS some", most)
	if err := l.db.QueryRowContext(ctx, s.String(), s.args...).Scan(&all, &often); err != nil {
		return 0, 0, fmt.Errorf("count rows in %v: %w", f.Statuses[0], err)
	}
	return all, often, nil
}

// Begun lists rows of a group that stand as somebody reopened them whose tokens begin so, reopened after a time and
// until another, oldest first, limit at most. Whether their messages were published the log does not know.
func (l *Log) Begun(
	ctx context.Context, group, token string, after, upTo time.Time, limit int,
) (rows []Row, err error) {
	var s statement
	s.add("SELECT " + rowColumns + " FROM " + l.table + " FORCE INDEX (by_status)")
	s.add(" WHERE group_name = ? AND consumer_status = ? AND consumer_times = 0", []byte(group), int(Failed))
	s.add(" AND LEFT(owner, ?) = ?", len(token), []byte(token))
	if !after.IsZero() {
		s.add(" AND consumer_timestamp > "+micros, after.UnixMicro())
	}
	s.add(" AND consumer_timestamp <= "+micros, upTo.UnixMicro())
	s.add(" ORDER BY consumer_timestamp LIMIT ?", limit)
	if err := l.scan(ctx, func(r Row) { rows = append(rows, r) }, s.String(), s.args...); err != nil {
		return nil, fmt.Errorf("list the rows that %s reopened: %w", token, err)
	}
	return rows, nil
}

// LastEvent is the id of the last step that is written down; 0 when none is.
func (l *Log) LastEvent(ctx context.Context) (id int64, err error) {
	if err := l.db.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM "+l.events).Scan(&id); err != nil {
		return 0, fmt.Errorf("read the last step: %w", err)
	}
	return id, nil
}

// CountBy is how many identities somebody brought into a status, by the steps after an id. It reads every step since.
func (l *Log) CountBy(ctx context.Context, group, by string, to Status, after int64) (n int, err error) {
	if err := l.db.QueryRowContext(ctx, "SELECT COUNT(DISTINCT msg_tag, msg_key) FROM "+l.events+" FORCE INDEX (PRIMARY)"+
		" WHERE id > ? AND `by` = ? AND `to` = ? AND group_name = ?", after, cutText(by, MaxBy), int(to),
		[]byte(group)).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the steps by %s: %w", by, err)
	}
	return n, nil
}

// StepsBy lists the steps into a status that somebody made, after an id, in the order of their ids, limit at most.
func (l *Log) StepsBy(
	ctx context.Context, group, by string, to Status, after int64, limit int,
) (steps []FeedEvent, err error) {
	err = l.query(ctx, func(rows *sql.Rows) error {
		e := FeedEvent{To: to}
		if err := rows.Scan(&e.ID, &e.Group, &e.Tag, &e.Key, &e.Replays); err != nil {
			return err
		}
		steps = append(steps, e)
		return nil
	}, "SELECT id, group_name, msg_tag, msg_key, replays FROM "+l.events+" FORCE INDEX (PRIMARY) WHERE id > ?"+
		" AND `by` = ? AND `to` = ? AND group_name = ? ORDER BY id LIMIT ?",
		after, cutText(by, MaxBy), int(to), []byte(group), limit)
	if err != nil {
		return nil, fmt.Errorf("list the steps by %s: %w", by, err)
	}
	return steps, nil
}
