package dedup

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// rowColumns are the columns of a Row, in the order of scanRow. Times come as microseconds, so that nothing depends on
// the time zone or the time parsing of the connection; the age is by the database's clock.
const rowColumns = "group_name, msg_tag, msg_key, consumer_status, consumer_times, replays, owner, body_hash, " +
	"reason, remark" +
	", TIMESTAMPDIFF(MICROSECOND, '1970-01-01', consumer_timestamp)" +
	", TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created_at)" +
	", TIMESTAMPDIFF(MICROSECOND, '1970-01-01', dead_at)" +
	", " + age

const keyIs = " WHERE group_name = ? AND msg_tag = ? AND msg_key = ?"

// MariaDB makes a temporary table of an IN list with 1000 values or more; below that, both servers read ranges of the
// primary key. The index is forced, because statistics of a young table may say that it is empty.
const (
	lookUpTagRows = 900 // keys of one group and tag: a value each
	lookUpAnyRows = 300 // keys of any: three values each, and a slower plan
)

// LookUp reads the rows of all keys: in one query when they share group and tag and are at most 900, else in few. Every
// key is in the answer; one without a row is Absent.
func (l *Log) LookUp(ctx context.Context, keys []Identity) (map[Identity]Row, error) {
	found := make(map[Identity]Row, len(keys))
	for _, k := range keys {
		found[k] = absent(k)
	}
	for rest := keys; len(rest) > 0; {
		n, text, args := l.lookUpSome(rest)
		if err := l.scan(ctx, func(r Row) { found[r.Identity] = r }, text, args...); err != nil {
			return nil, fmt.Errorf("look up %d keys from %v: %w", n, rest[0], err)
		}
		rest = rest[n:]
	}
	return found, nil
}

func absent(k Identity) Row { return Row{Identity: k, Version: Version{Status: Absent}} }

// lookUpSome is the query for the first n of keys. Names share one block of memory.
func (l *Log) lookUpSome(keys []Identity) (n int, text string, args []any) {
	first, size := keys[0], 0
	for n < min(len(keys), lookUpTagRows) && keys[n].Group == first.Group && keys[n].Tag == first.Tag {
		size += len(keys[n].Key)
		n++
	}
	block := make([]byte, 0, size)
	if n == len(keys) || n >= lookUpAnyRows {
		args = append(make([]any, 0, 2+n), []byte(first.Group), []byte(first.Tag))
		for _, k := range keys[:n] {
			block = append(block, k.Key...)
			args = append(args, block[len(block)-len(k.Key):])
		}
		return n, l.lookUpTag.of(n), args
	}
	n = min(len(keys), lookUpAnyRows)
	args = make([]any, 0, 3*n)
	for _, k := range keys[:n] {
		args = append(args, []byte(k.Group), []byte(k.Tag), []byte(k.Key))
	}
	return n, l.lookUpAny.of(n), args
}

// Read reads one row with all it keeps of its message; Absent when there is none.
func (l *Log) Read(ctx context.Context, k Identity) (Row, error) {
	row := absent(k)
	text := "SELECT " + rowColumns + ", msg_id, msg_body, properties FROM " + l.table + keyIs
	err := l.query(ctx, func(rows *sql.Rows) error {
		r, err := l.scanWhole(rows)
		row = r
		return err
	}, text, keyArgs(k)...)
	if err != nil {
		return Row{}, fmt.Errorf("read %v: %w", k, err)
	}
	return row, nil
}

// Holds reports whether the row is in exactly this version. An owner that is empty in want is not compared. It is how a
// lost answer is cleared up; false may still become true as long as the COMMIT in question has not been decided.
func (l *Log) Holds(ctx context.Context, k Identity, want Version) (bool, error) {
	rows, err := l.LookUp(ctx, []Identity{k})
	if err != nil {
		return false, err
	}
	have := rows[k].Version
	if want.Owner == "" {
		have.Owner = ""
	}
	return have == want, nil
}

// Events reads the story of one identity, oldest first.
func (l *Log) Events(ctx context.Context, k Identity) ([]Event, error) {
	var events []Event
	text := "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', `at`), `from`, `to`, attempt, replays, owner, error, " +
		"`by` FROM " +
		l.events + keyIs + " ORDER BY id"
	err := l.query(ctx, func(rows *sql.Rows) error {
		var e Event
		var at int64
		var from sql.NullInt16
		var owner sql.NullString
		if err := rows.Scan(&at, &from, &e.To, &e.Attempt, &e.Replays, &owner, &e.Error, &e.By); err != nil {
			return err
		}
		e.At, e.From, e.Owner = time.UnixMicro(at).UTC(), Absent, owner.String
		if from.Valid {
			e.From = Status(from.Int16)
		}
		events = append(events, e)
		return nil
	}, text, keyArgs(k)...)
	if err != nil {
		return nil, fmt.Errorf("read the events of %v: %w", k, err)
	}
	return events, nil
}

// SchemaID is the UUID that the first migration gave to this log. It is part of every name in Redis, so that another
// installation, or a log made anew, never meets this one's marks. ErrSchema when there is none.
func (l *Log) SchemaID(ctx context.Context) (string, error) {
	var id string
	row := l.db.QueryRowContext(ctx, "SELECT value FROM "+metaTable+" WHERE name = ?", []byte(schemaIDName(l.o.Table)))
	switch err := row.Scan(&id); {
	case errors.Is(err, sql.ErrNoRows), mysqldb.NoTable(err):
		return "", fmt.Errorf("%w: table %s has no id", ErrSchema, l.o.Table)
	case err != nil:
		return "", fmt.Errorf("read the schema's id: %w", err)
	}
	return id, nil
}

func (l *Log) scan(ctx context.Context, add func(Row), text string, args ...any) error {
	return l.query(ctx, func(rows *sql.Rows) error {
		r, err := l.scanRow(rows)
		if err == nil {
			add(r)
		}
		return err
	}, text, args...)
}

// scanRow reads the columns of rowColumns, and what comes after them into more.
func (l *Log) scanRow(rows *sql.Rows, more ...any) (Row, error) {
	var r Row
	var owner, reason sql.NullString
	var at, created, age int64
	var dead sql.NullInt64
	into := append([]any{
		&r.Group, &r.Tag, &r.Key, &r.Status, &r.Attempts, &r.Replays, &owner, &r.BodyHash, &reason, &r.Remark,
		&at, &created, &dead, &age,
	}, more...)
	if err := rows.Scan(into...); err != nil {
		return Row{}, err
	}
	r.Owner, r.Reason = owner.String, Reason(reason.String)
	r.At, r.CreatedAt = time.UnixMicro(at).UTC(), time.UnixMicro(created).UTC()
	if dead.Valid {
		r.DeadAt = time.UnixMicro(dead.Int64).UTC()
	}
	r.Age = time.Duration(age) * time.Microsecond
	l.judge(&r)
	return r, nil
}

func (l *Log) query(ctx context.Context, each func(*sql.Rows) error, text string, args ...any) error {
	rows, err := l.db.QueryContext(ctx, text, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
