package dedup

import (
	"context"
	"fmt"
	"slices"
)

// Events reads the story of one identity, oldest first. Two of its steps, which most messages have that are claimed,
// leave no event, because the row tells of them: the claim that made it, and its success.
func (l *Log) Events(ctx context.Context, k Identity) ([]Event, error) {
	events, err := l.steps(ctx, fmt.Sprint("the events of ", k), sqlOf(keyIs+" ORDER BY id", keyArgs(k)...))
	if err != nil {
		return nil, err
	}
	rows, err := l.LookUp(ctx, []Identity{k})
	return withTold(rows[k], events), err
}

// withTold adds to the events of a row what the row tells.
func withTold(r Row, events []Event) []Event {
	if r.Owner == "" || r.TakenOver() { // nobody claimed it
		return events
	}
	made := Event{Identity: r.Identity, At: r.CreatedAt, From: Absent, To: Processing, Attempt: 1}
	switch {
	case len(events) == 0:
		made.Owner = r.Owner
		events = []Event{made}
	case events[0].From == Processing:
		events = slices.Insert(events, 0, made)
	}
	last := events[len(events)-1]
	if r.Status != Success || last.To == Success {
		return events
	}
	done := Event{Identity: r.Identity, At: r.At, Age: r.Age, From: Processing, To: Success, Attempt: r.Attempts,
		Replays: r.Replays, Owner: r.Owner}
	if last.Owner == r.Owner { // no claim since
		done.From = last.To
	}
	return append(events, done)
}

// EventFeed reads the steps of all identities after an id, in the order of their ids, limit at most.
func (l *Log) EventFeed(ctx context.Context, after int64, limit int) ([]Event, error) {
	return l.steps(ctx, fmt.Sprint("what is new after step ", after), sqlOf(" WHERE id > ? ORDER BY id LIMIT ?", after,
		limit))
}

// StepsBy lists the steps into a status that somebody made, after an id, in the order of their ids, limit at most.
func (l *Log) StepsBy(ctx context.Context, group, by string, to Status, after int64, limit int) ([]Event, error) {
	where := stepsBy(group, by, to, after)
	where.add(" ORDER BY id LIMIT ?", limit)
	return l.steps(ctx, "the steps by "+by, where)
}

// CountBy is how many identities somebody brought into a status, by the steps after an id. It reads every step since.
func (l *Log) CountBy(ctx context.Context, group, by string, to Status, after int64) (n int, err error) {
	defer wrap(&err, "count the steps by %s", by)
	where := stepsBy(group, by, to, after)
	err = sqlOf("SELECT COUNT(DISTINCT msg_tag, msg_key) FROM "+l.events+where.String(), where.args...).scan(ctx, l.db, &n)
	return n, err
}

func stepsBy(group, by string, to Status, after int64) statement {
	return sqlOf(" FORCE INDEX (PRIMARY) WHERE id > ? AND `by` = ? AND `to` = ? AND group_name = ?", after,
		cutText(by, MaxBy), int(to), []byte(group))
}

func (l *Log) steps(ctx context.Context, what string, where statement) (_ []Event, err error) {
	defer wrap(&err, "read %s", what)
	return list(ctx, l.db, sqlOf("SELECT id, group_name, msg_tag, msg_key, "+since+"`at`), "+
		"ABS(TIMESTAMPDIFF(MICROSECOND, `at`, UTC_TIMESTAMP(6))), COALESCE(`from`, -1), `to`, attempt, replays, "+
		"COALESCE(owner, ''), error, `by` FROM "+l.events+where.String(), where.args...), func(e *Event) []any {
		return []any{&e.ID, &e.Group, &e.Tag, &e.Key, utc{&e.At}, micros{&e.Age}, &e.From, &e.To, &e.Attempt, &e.Replays,
			&e.Owner, &e.Error, &e.By}
	})
}

// LastEvent is the id of the last step that is written down; 0 when none is.
func (l *Log) LastEvent(ctx context.Context) (id int64, err error) {
	defer wrap(&err, "read the last step")
	err = sqlOf("SELECT COALESCE(MAX(id), 0) FROM "+l.events).scan(ctx, l.db, &id)
	return id, err
}
