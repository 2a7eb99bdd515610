package dedup

import (
	"context"
	"fmt"
)

// rowColumns are the columns of a Row, in the order of rows; the age is by the database's clock. wholeColumns have what
// a row keeps of its message too.
const (
	someColumns = "group_name, msg_tag, msg_key, consumer_status, consumer_times, replays, COALESCE(owner, ''), " +
		"body_hash, COALESCE(reason, ''), remark, " +
		since + "consumer_timestamp), " + since + "created_at), " + since + "dead_at), " + age + ", " +
		"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), due_at), "
	rowColumns   = someColumns + "'', NULL, NULL"
	wholeColumns = someColumns + "COALESCE(msg_id, ''), msg_body, properties"
)

// rows reads the rows that a statement selects by such columns.
func (l *Log) rows(ctx context.Context, s statement) ([]Row, error) {
	rows, err := list(ctx, l.db, s, func(r *Row) []any {
		return []any{
			&r.Group, &r.Tag, &r.Key, &r.Status, &r.Attempts, &r.Replays, &r.Owner, &r.BodyHash, &r.Reason, &r.Remark,
			utc{&r.At}, utc{&r.CreatedAt}, utc{&r.DeadAt}, micros{&r.Age}, &r.due, &r.MessageID, &r.Body, &r.Properties,
		}
	})
	for i := range rows {
		l.judge(&rows[i])
	}
	return rows, err
}

// MariaDB makes a temporary table of an IN list with 1000 values or more; below that, both servers read ranges of the
// primary key. The index is forced, because statistics of a young table may say that it is empty.
const (
	lookUpTagRows = 900 // keys of one group and tag: a value each
	lookUpAnyRows = 300 // keys of any: three values each, and a slower plan
)

// LookUp reads the rows of all keys: in one query when they share group and tag and are at most 900, else in few. Every
// key is in the answer; one without a row is Absent.
func (l *Log) LookUp(ctx context.Context, keys []Identity) (map[Identity]Row, error) {
	return l.lookUp(ctx, keys, rowColumns, lookUpTagRows)
}

// ReadAll is LookUp with what each row keeps of its message.
func (l *Log) ReadAll(ctx context.Context, keys []Identity) (map[Identity]Row, error) {
	return l.lookUp(ctx, keys, wholeColumns, 50) // bodies of 256 KiB at most
}

// Read is ReadAll of one row.
func (l *Log) Read(ctx context.Context, k Identity) (Row, error) {
	rows, err := l.ReadAll(ctx, []Identity{k})
	return rows[k], err
}

func (l *Log) lookUp(ctx context.Context, keys []Identity, columns string, most int) (map[Identity]Row, error) {
	if l.memory != nil {
		return l.memory.lookUp(l, keys), nil
	}
	found := make(map[Identity]Row, len(keys))
	for _, k := range keys {
		found[k] = absent(k)
	}
	for rest := keys; len(rest) > 0; {
		n := min(lookUpSome(rest), most)
		rows, err := l.rows(ctx, l.ofKeys(rest[:n], columns))
		if err != nil {
			return nil, fmt.Errorf("look up %d keys from %v: %w", n, rest[0], err)
		}
		for _, r := range rows {
			found[r.Identity] = r
		}
		rest = rest[n:]
	}
	return found, nil
}

func absent(k Identity) Row { return Row{Identity: k, Version: Version{Status: Absent}} }

// lookUpSome is how many of keys one statement takes.
func lookUpSome(keys []Identity) int {
	n := min(sameTag(keys), lookUpTagRows)
	if n < len(keys) && n < lookUpAnyRows {
		return min(len(keys), lookUpAnyRows)
	}
	return n
}

func (l *Log) ofKeys(keys []Identity, columns string) (s statement) {
	s.add("SELECT " + columns + " FROM " + l.table + " FORCE INDEX (PRIMARY)")
	addKeys(&s, keys)
	return s
}

// Holds reports whether the row is in exactly this version. An owner that is empty in want is not compared. It is how a
// lost answer is cleared up; false may still become true as long as the COMMIT in question has not been decided.
func (l *Log) Holds(ctx context.Context, k Identity, want Version) (bool, error) {
	rows, err := l.LookUp(ctx, []Identity{k})
	return err == nil && holds(rows[k], want), err
}

func holds(r Row, want Version) bool {
	have := r.Version
	if want.Owner == "" {
		have.Owner = ""
	}
	return have == want
}
