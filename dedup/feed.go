package dedup

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// FeedEvent is a step of the log's story, of whatever identity.
type FeedEvent struct {
	ID int64 // grows with every step that is written; steps may become visible in another order
	Identity
	From, To Status
	Replays  int
	Age      time.Duration // by the database's clock; as in Row
}

// EventFeed reads the steps after an id, in the order of their ids, limit at most. The fast path writes none.
func (l *Log) EventFeed(ctx context.Context, after int64, limit int) (feed []FeedEvent, err error) {
	text := "SELECT id, group_name, msg_tag, msg_key, `from`, `to`, replays, TIMESTAMPDIFF(MICROSECOND, `at`, " +
		"UTC_TIMESTAMP(6)) FROM " +
		l.events + " WHERE id > ? ORDER BY id LIMIT ?"
	err = l.query(ctx, func(rows *sql.Rows) error {
		e := FeedEvent{From: Absent}
		var from sql.NullInt16
		var age int64
		if err := rows.Scan(&e.ID, &e.Group, &e.Tag, &e.Key, &from, &e.To, &e.Replays, &age); err != nil {
			return err
		}
		if from.Valid {
			e.From = Status(from.Int16)
		}
		e.Age = (time.Duration(age) * time.Microsecond).Abs()
		feed = append(feed, e)
		return nil
	}, text, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read what is new after step %d: %w", after, err)
	}
	return feed, nil
}

// Bookmark is the step of the event feed up to which a group was notified. The first call puts it behind the last step
// that there is.
func (l *Log) Bookmark(ctx context.Context, group string) (id int64, err error) {
	name := l.bookmarkName(group)
	for {
		var text []byte
		err := l.db.QueryRowContext(ctx, "SELECT value FROM "+metaTable+" WHERE name = ?", name).Scan(&text)
		if err == nil {
			id, err = strconv.ParseInt(string(text), 10, 64)
			if err != nil {
				err = fmt.Errorf("read bookmark %s: %w", name, err)
			}
			return id, err
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return 0, fmt.Errorf("read the bookmark: %w", err)
		}
		if _, err := l.db.ExecContext(ctx, "INSERT INTO "+metaTable+" (name, value) SELECT ?, COALESCE(MAX(id), 0) FROM "+
			l.events+
			" ON DUPLICATE KEY UPDATE value = "+metaTable+".value", name); err != nil {
			return 0, fmt.Errorf("put the first bookmark: %w", err)
		}
	}
}

// MoveBookmark moves a group's bookmark on, never back: whoever comes late changes nothing.
func (l *Log) MoveBookmark(ctx context.Context, group string, id int64) error {
	if _, err := l.db.ExecContext(ctx, "UPDATE "+metaTable+" SET value = ? WHERE name = ? AND CAST(value AS UNSIGNED) < ?",
		strconv.AppendInt(nil, id, 10), l.bookmarkName(group), id); err != nil {
		return fmt.Errorf("move the bookmark to step %d: %w", id, err)
	}
	return nil
}

// bookmarkName is at most 80 bytes; the column takes 100. A group may be longer than what is left of it.
func (l *Log) bookmarkName(group string) []byte {
	hash := sha256.Sum256([]byte(group))
	return fmt.Appendf(nil, "told:%s:%s", l.o.Table, hex.EncodeToString(hash[:16]))
}
