package dedup

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// The meta table holds what all processes at a log share besides rows: texts under names, each changed by
// compare-and-set.

// metaName is the name of what is noted of somebody, whose own may be longer than the column: 83 bytes at most.
func (l *Log) metaName(kind, of string) []byte {
	hash := sha256.Sum256([]byte(of))
	return fmt.Appendf(nil, "%s:%s:%s", kind, l.o.Table, hex.EncodeToString(hash[:16]))
}

// noteName is that of what is noted of a group's queue.
func (l *Log) noteName(kind, group, queue string) []byte {
	return l.metaName(kind, fmt.Sprintf("%d:%s%s", len(group), group, queue))
}

// readMeta reads a text by primary key, nil when there is none, and the database's time.
func (l *Log) readMeta(ctx context.Context, on Execer, name []byte) (text []byte, now time.Time, err error) {
	s := sqlOf("SELECT "+since+"UTC_TIMESTAMP(6)), value FROM (SELECT 1 AS one) AS once LEFT JOIN "+metaTable+
		" ON name = ?", name)
	err = s.scan(ctx, on, utc{&now}, &text)
	return text, now, err
}

// swapMeta writes a text if it is as it was read, nil when there was none.
func swapMeta(ctx context.Context, on Execer, name, was, text []byte) (swapped bool, err error) {
	s := sqlOf("UPDATE "+metaTable+" SET value = ? WHERE name = ? AND value = ?", text, name, was)
	if was == nil {
		s = sqlOf("INSERT INTO "+metaTable+" (name, value) VALUES (?, ?)", name, text)
	}
	n, err := s.exec(ctx, on)
	if was == nil && mysqldb.Duplicate(err) {
		return false, nil
	}
	return n == 1, err
}

// shareMeta is the text under a name: the first one who asks makes it.
func (l *Log) shareMeta(
	ctx context.Context, name []byte, anew func() ([]byte, error),
) (text []byte, now time.Time, err error) {
	for {
		if text, now, err = l.readMeta(ctx, l.db, name); err != nil || text != nil {
			return text, now, err
		}
		if text, err = anew(); err != nil {
			return nil, now, err
		}
		if _, err := swapMeta(ctx, l.db, name, nil, text); err != nil {
			return nil, now, err
		}
	}
}

// raiseMeta moves a number on, never back: whoever comes late changes nothing.
func (l *Log) raiseMeta(ctx context.Context, name []byte, n int64) error {
	_, err := sqlOf("UPDATE "+metaTable+" SET value = ? WHERE name = ? AND CAST(value AS SIGNED) < ?",
		strconv.AppendInt(nil, n, 10), name, n).exec(ctx, l.db)
	return err
}

// readNote reads a text into n, which JSON knows.
func (l *Log) readNote(ctx context.Context, on Execer, name []byte, n any) (stored []byte, now time.Time, err error) {
	stored, now, err = l.readMeta(ctx, on, name)
	if stored != nil {
		if err := json.Unmarshal(stored, n); err != nil {
			return nil, now, fmt.Errorf("%s holds %q under %s: %w", metaTable, stored, name, err)
		}
	}
	return stored, now, err
}

// writeNote writes a note if it is as it was read.
func (l *Log) writeNote(ctx context.Context, on Execer, name, stored []byte, n any) (moved bool, err error) {
	text, err := json.Marshal(n)
	if err != nil {
		return false, err
	}
	return swapMeta(ctx, on, name, stored, text)
}

// SchemaID is the UUID that the first migration gave to this log. It is part of every name in Redis, so that another
// installation, or a log made anew, never meets this one's marks. ErrSchema when there is none.
func (l *Log) SchemaID(ctx context.Context) (string, error) {
	id, _, err := l.readMeta(ctx, l.db, []byte("schema_id:"+l.o.Table))
	switch {
	case err == nil && id == nil, mysqldb.NoTable(err):
		return "", fmt.Errorf("%w: table %s has no id", ErrSchema, l.o.Table)
	case err != nil:
		return "", fmt.Errorf("read the schema's id: %w", err)
	}
	return string(id), nil
}

// FormKey is a secret that all processes at this log share, made when it is first asked for, and the time by the
// database's clock. What is signed with it needs no row until it is used.
func (l *Log) FormKey(ctx context.Context) (key []byte, now time.Time, err error) {
	defer wrap(&err, "read the key of forms")
	return l.shareMeta(ctx, []byte("form_key:"+l.o.Table), func() ([]byte, error) { return []byte(rand.Text()), nil })
}

// Bookmark is the step of the event feed up to which a group was notified. The first call puts it behind the last step
// that there is.
func (l *Log) Bookmark(ctx context.Context, group string) (id int64, err error) {
	defer wrap(&err, "read the bookmark")
	text, _, err := l.shareMeta(ctx, l.metaName("told", group), func() ([]byte, error) {
		last, err := l.LastEvent(ctx)
		return strconv.AppendInt(nil, last, 10), err
	})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(text), 10, 64)
}

// MoveBookmark moves a group's bookmark on, never back.
func (l *Log) MoveBookmark(ctx context.Context, group string, id int64) (err error) {
	defer wrap(&err, "move the bookmark to step %d", id)
	return l.raiseMeta(ctx, l.metaName("told", group), id)
}

// notePruned writes down, before anything is deleted, that rows which ended before then may be gone. It never moves
// back.
func (l *Log) notePruned(ctx context.Context, group string, before int64) (err error) {
	defer wrap(&err, "note what is deleted")
	name := l.metaName("pruned", group)
	if _, _, err := l.shareMeta(ctx, name, func() ([]byte, error) { return []byte("0"), nil }); err != nil {
		return err
	}
	return l.raiseMeta(ctx, name, before)
}

// Remembers is how far back the log of a group knows every identity that ended: older rows may have been deleted,
// whatever the retention is now. 0: nothing was ever deleted.
func (l *Log) Remembers(ctx context.Context, group string) (_ time.Duration, err error) {
	defer wrap(&err, "read how far back the log goes")
	text, now, err := l.readMeta(ctx, l.db, l.metaName("pruned", group))
	before, _ := strconv.ParseInt(string(text), 10, 64)
	if err != nil || before <= 0 {
		return 0, err
	}
	return max(time.Microsecond, now.Sub(time.UnixMicro(before))), nil
}
