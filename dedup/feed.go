package dedup

import (
	"context"
	"database/sql"
	"fmt"
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
func (l *Log) EventFeed(ctx context.Context, after int64, limit int) ([]FeedEvent, error) {
	steps, err := l.steps(ctx, sqlOf(" WHERE id > ?", after), limit)
	if err != nil {
		return nil, fmt.Errorf("read what is new after step %d: %w", after, err)
	}
	return steps, nil
}

// StepsBy lists the steps into a status that somebody made, after an id, in the order of their ids, limit at most.
func (l *Log) StepsBy(
	ctx context.Context, group, by string, to Status, after int64, limit int,
) ([]FeedEvent, error) {
	steps, err := l.steps(ctx, stepsBy(group, by, to, after), limit)
	if err != nil {
		return nil, fmt.Errorf("list the steps by %s: %w", by, err)
	}
	return steps, nil
}

// CountBy is how many identities somebody brought into a status, by the steps after an id. It reads every step since.
func (l *Log) CountBy(ctx context.Context, group, by string, to Status, after int64) (n int, err error) {
	where := stepsBy(group, by, to, after)
	if err := sqlOf("SELECT COUNT(DISTINCT msg_tag, msg_key) FROM "+l.events+
		where.String(), where.args...).scan(ctx, l.db, &n); err != nil {
		return 0, fmt.Errorf("count the steps by %s: %w", by, err)
	}
	return n, nil
}

func stepsBy(group, by string, to Status, after int64) statement {
	return sqlOf(" FORCE INDEX (PRIMARY) WHERE id > ? AND `by` = ? AND `to` = ? AND group_name = ?", after,
		cutText(by, MaxBy), int(to), []byte(group))
}

func (l *Log) steps(ctx context.Context, where statement, limit int) ([]FeedEvent, error) {
	where.add(" ORDER BY id LIMIT ?", limit)
	return list(ctx, l.db, sqlOf("SELECT id, group_name, msg_tag, msg_key, COALESCE(`from`, -1), `to`, replays, "+
		"ABS(TIMESTAMPDIFF(MICROSECOND, `at`, UTC_TIMESTAMP(6))) FROM "+l.events+
		where.String(), where.args...), func(rows *sql.Rows) (e FeedEvent, err error) {
		err = rows.Scan(&e.ID, &e.Group, &e.Tag, &e.Key, &e.From, &e.To, &e.Replays, micros{&e.Age})
		return e, err
	})
}

// LastEvent is the id of the last step that is written down; 0 when none is.
func (l *Log) LastEvent(ctx context.Context) (id int64, err error) {
	if err := sqlOf("SELECT COALESCE(MAX(id), 0) FROM "+l.events).scan(ctx, l.db, &id); err != nil {
		return 0, fmt.Errorf("read the last step: %w", err)
	}
	return id, nil
}
