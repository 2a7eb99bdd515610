package locking

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/lock"
)

// MigrationSet is the name under which the versions of [Migrations] are counted in a schema. It never changes.
const MigrationSet = "lock"

//go:embed migrations
var migrationFiles embed.FS

// Migrations are the steps that make the table of [MySQL], as files for goose.
func Migrations() fs.FS {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // only a path that is not valid is refused
	}
	return files
}

// MySQLTable is the table of [MySQL].
const MySQLTable = "rollbackd_lock"

// MySQL is the lock over rows of a table of MySQL or MariaDB, for who has no Redis. A row is judged by the server's
// clock alone. It writes no done markers: each would be a row to insert and to delete beside that of the consumer log,
// which stands on the same server and knows more. So Done gives the names back.
//
// All statements commit by themselves, and all of them meet rows in the order of their names: no two wait for each
// other, and no lock of a row outlives its statement.
type MySQL struct {
	lock.Locker
	store *mysqlStore
}

// OpenMySQL makes a lock with a pool of its own, so that it never takes a connection from a lane: with the settings
// that all pools of rollbackd have, and the shortest wait for locks of rows. It asks MySQL nothing. Close ends the
// pool, after Run has returned.
func OpenMySQL(ctx context.Context, s Servers, o lock.Options) (*MySQL, error) {
	o = o.WithDefaults()
	db, _, err := mysqldb.Open(ctx, s.MySQLDSN, mysqldb.Options{ // the pool of the log has said what the DSN is warned of
		Program: s.Name, MaxOpen: max(s.Connections, 2), LockWait: lockWait,
		DialTimeout: o.Timeout, ReadTimeout: lockWait + o.Timeout, WriteTimeout: lockWait + o.Timeout,
		CurrentDSN: s.CurrentMySQLDSN, Opened: s.Opened, TLS: s.MySQLTLS, Warn: func(error) {}, // likewise
	})
	if err != nil {
		return nil, err
	}
	l := &MySQL{store: &mysqlStore{ttl: o.LockTTL, timeout: o.Timeout}}
	if l.store.pool, err = db.DB(); err != nil {
		return nil, fmt.Errorf("the database handle: %w", err)
	}
	if l.Locker, err = lock.Over("the lock in mysql", l.store, o); err != nil {
		return nil, errors.Join(err, l.store.pool.Close())
	}
	return l, nil
}

// lockWait is the shortest that MySQL knows.
const lockWait = time.Second

// Close ends the pool.
func (l *MySQL) Close() error { return l.store.pool.Close() }

// Clean deletes rows that have been over for a minute and returns how many: those of workers that died. One process is
// enough for it. It reads without locks and deletes by name, so it stands in nobody's way.
func (l *MySQL) Clean(ctx context.Context) (deleted int, err error) { return l.store.clean(ctx) }

type mysqlStore struct {
	pool         *sql.DB
	ttl, timeout time.Duration
}

// now is the server's clock. It stands still within a statement.
const now = "UTC_TIMESTAMP(6)"

// Take is one INSERT of all names. Where a row stands already that is over, or ours, it is written over; and any such
// row leaves a mark in what the server says of the statement (LAST_INSERT_ID), so that only who has met one asks what
// stands there. The same statement may be sent again after a lost reply.
func (l *mysqlStore) Take(ctx context.Context, value string, names []lock.Name) ([]lock.Held, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	held := make([]lock.Held, len(names))
	open := make([]int, len(names)) // what is not known yet, in the order of the names
	for i := range open {
		open[i] = i
	}
	slices.SortFunc(open, func(a, b int) int { return strings.Compare(names[a].String(), names[b].String()) })
	const tries = 3 // a row that was in the way may be gone before it is looked at
	for try := 0; len(open) > 0; try++ {
		left, err := l.takeSome(ctx, value, names, open, held)
		if err != nil {
			return held, l.explain(ctx, err)
		}
		if try == tries-1 {
			for _, i := range left {
				held[i].Hold = lock.HeldByOther // whose lock it is changes faster than it is looked at
			}
			break
		}
		open = left
	}
	return held, nil
}

// chunk bounds a statement, so that it is none that the server finds too large or that runs for long.
const chunk = 1000

// endless is the number of TTLs that no lock of ours has left. A lock that is renewed while it is looked at has a bit
// more than one: the look's clock is that of its beginning.
const endless = 2

// takeSome tries the open names and returns those of which nothing is known: their rows went while it looked.
func (l *mysqlStore) takeSome(
	ctx context.Context, value string, names []lock.Name, open []int, held []lock.Held,
) (left []int, _ error) {
	for some := range slices.Chunk(open, chunk) {
		texts := make([]string, len(some))
		for n, i := range some {
			texts[n] = names[i].String()
		}
		met, err := l.insert(ctx, value, texts, l.ttl)
		if err != nil {
			return nil, err
		}
		if !met {
			for _, i := range some {
				held[i].Hold = lock.Mine
			}
			continue
		}
		rows, err := l.look(ctx, texts)
		if err != nil {
			return nil, err
		}
		for n, i := range some {
			row, ok := rows[texts[n]]
			switch {
			case !ok:
				left = append(left, i)
			case row.value != value && row.left > endless*l.ttl: // nobody ends it, so nobody waits for it
				held[i].Hold = lock.Foreign
			default:
				held[i] = lock.ReadHeld(row.value, value)
			}
		}
	}
	return left, nil
}

// insert writes a row for each name. It reports whether it met rows that stood there.
func (l *mysqlStore) insert(
	ctx context.Context, value string, names []string, ttl time.Duration,
) (met bool, err error) {
	var text strings.Builder
	fmt.Fprintf(&text, "INSERT INTO %s (name, value, expires_at) VALUES ", MySQLTable)
	row := fmt.Sprintf("(?, ?, %s + INTERVAL %d MICROSECOND)", now, ttl.Microseconds())
	args := make([]any, 0, 2*len(names))
	for i, name := range names {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(row)
		args = append(args, name, value)
	}
	// In whatever order a server assigns the two columns, both follow the row as it was: a value that was taken over is
	// ours. The mark depends on the row, because a constant is looked at also when there is none.
	text.WriteString(" ON DUPLICATE KEY UPDATE" +
		" value = IF(expires_at <= " + now + ", VALUES(value), value)," +
		" expires_at = IF(LAST_INSERT_ID(LENGTH(name)) > 0 AND (value = VALUES(value) OR expires_at <= " + now + ")," +
		" VALUES(expires_at), expires_at)")
	err = l.insist(ctx, func() error {
		result, err := l.pool.ExecContext(mysqldb.Repeated(ctx), text.String(), args...)
		if err != nil {
			return err
		}
		changed, err := result.RowsAffected()
		if err != nil {
			return err
		}
		last, err := result.LastInsertId()
		met = last != 0 || changed != int64(len(names))
		return err
	})
	return met, err
}

// lockRow is what stands under a name.
type lockRow struct {
	value string
	left  time.Duration // until it expires; negative: it has
}

// look reads the rows of names.
func (l *mysqlStore) look(ctx context.Context, names []string) (rows map[string]lockRow, err error) {
	text := "SELECT name, value, TIMESTAMPDIFF(MICROSECOND, " + now + ", expires_at) FROM " + MySQLTable +
		" FORCE INDEX (PRIMARY) WHERE name IN " + places(len(names))
	err = l.insist(ctx, func() error {
		rows = make(map[string]lockRow, len(names))
		found, err := l.pool.QueryContext(ctx, text, anys(names)...)
		if err != nil {
			return err
		}
		defer found.Close()
		for found.Next() {
			var name, value string
			var left int64
			if err := found.Scan(&name, &value, &left); err != nil {
				return err
			}
			const longest = int64(1<<63-1) / int64(time.Microsecond)
			rows[name] = lockRow{value, time.Duration(min(left, longest)) * time.Microsecond}
		}
		return found.Err()
	})
	return rows, err
}

// GiveBack deletes the rows that have the value.
func (l *mysqlStore) GiveBack(ctx context.Context, value string, names []lock.Name) error {
	return l.delete(ctx, names, " AND l.value = ?", value)
}

// Mark deletes the rows, whoever holds them: the success is committed.
func (l *mysqlStore) Mark(ctx context.Context, marks []lock.Mark) error {
	names := make([]lock.Name, len(marks))
	for i, m := range marks {
		names[i] = m.Name
	}
	return l.delete(ctx, names, "")
}

// delete is one statement for all names, and a condition.
func (l *mysqlStore) delete(ctx context.Context, names []lock.Name, condition string, args ...any) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	for some := range slices.Chunk(sorted(names), chunk) {
		text := "DELETE l FROM " + MySQLTable + " AS l FORCE INDEX (PRIMARY) WHERE l.name IN " + places(len(some)) + condition
		err := l.insist(ctx, func() error {
			_, err := l.pool.ExecContext(mysqldb.Repeated(ctx), text, append(anys(some), args...)...)
			return err
		})
		if err != nil {
			return l.explain(ctx, err)
		}
	}
	return nil
}

// Renew is one UPDATE for each batch in hand. Whose rows were changed by less than their number has lost some.
func (l *mysqlStore) Renew(ctx context.Context, names []lock.Name, values []string) (stands []bool, err error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	batches := make(map[string][]int)
	for i, value := range values {
		batches[value] = append(batches[value], i)
	}
	stands = make([]bool, len(names))
	for i := range stands {
		stands[i] = true // what is not known is not given up
	}
	for value, batch := range batches {
		lost, err := l.renewBatch(ctx, value, names, batch)
		if err != nil {
			return stands, l.explain(ctx, err)
		}
		for _, i := range lost {
			stands[i] = false
		}
	}
	return stands, nil
}

func (l *mysqlStore) renewBatch(ctx context.Context, value string, names []lock.Name, batch []int) (lost []int,
	_ error,
) {
	texts := make([]string, len(batch))
	for n, i := range batch {
		texts[n] = names[i].String()
	}
	slices.Sort(texts)
	text := fmt.Sprintf("UPDATE %s FORCE INDEX (PRIMARY) SET expires_at = %s + INTERVAL %d MICROSECOND WHERE name IN %s"+
		" AND value = ?", MySQLTable, now, l.ttl.Microseconds(), places(len(texts)))
	var changed int64
	err := l.insist(ctx, func() error {
		result, err := l.pool.ExecContext(ctx, text, append(anys(texts), value)...)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()
		return err
	})
	if err != nil || changed == int64(len(texts)) {
		return nil, err
	}
	rows, err := l.look(ctx, texts)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(batch), func(i int) bool { return rows[names[i].String()].value == value }), nil
}

// GiveUp has nothing to do: the rows are over by themselves.
func (*mysqlStore) GiveUp(context.Context, string, []lock.Name) error { return nil }

// probeName is none that a message has.
const probeName = "rollbackd:probe"

// Probe writes a row, as Lock does: a server that is full or read-only answers everything else.
func (l *mysqlStore) Probe(ctx context.Context) error {
	ctx, cancel := l.within(ctx)
	defer cancel()
	_, err := l.insert(ctx, "probe", []string{probeName}, 0)
	return l.explain(ctx, err)
}

// Show looks at one row.
func (l *mysqlStore) Show(ctx context.Context, name lock.Name) (lock.State, error) {
	ctx, cancel := l.within(ctx)
	defer cancel()
	rows, err := l.look(ctx, []string{name.String()})
	if err != nil {
		return lock.State{}, l.explain(ctx, err)
	}
	row, ok := rows[name.String()]
	if !ok || row.left <= 0 {
		return lock.State{}, nil
	}
	return lock.ReadState(row.value, row.left), nil
}

func (l *mysqlStore) clean(ctx context.Context) (deleted int, err error) {
	over := "expires_at < " + now + " - INTERVAL 1 MINUTE"
	for {
		names, err := l.over(ctx, over)
		if err != nil || len(names) == 0 {
			return deleted, err
		}
		text := "DELETE l FROM " + MySQLTable + " AS l FORCE INDEX (PRIMARY) WHERE l.name IN " + places(len(names)) +
			" AND l." + over
		err = l.insist(ctx, func() error {
			result, err := l.pool.ExecContext(ctx, text, anys(names)...)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			deleted += int(n)
			return err
		})
		if err != nil {
			return deleted, fmt.Errorf("delete old locks: %w", err)
		}
	}
}

// over are the names of some rows that are over, in their order.
func (l *mysqlStore) over(ctx context.Context, over string) (names []string, err error) {
	rows, err := l.pool.QueryContext(ctx, fmt.Sprintf("SELECT name FROM %s FORCE INDEX (by_expiry) WHERE %s"+
		" ORDER BY expires_at LIMIT %d", MySQLTable, over, chunk))
	if err != nil {
		return nil, fmt.Errorf("find old locks: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("find old locks: %w", err)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, rows.Err()
}

// insist repeats a statement whose connection broke, or that met another transaction: all of ours may be repeated.
func (l *mysqlStore) insist(ctx context.Context, statement func() error) error {
	const tries = 3
	for try := 1; ; try++ {
		err := statement()
		again := mysqldb.Classify(err) == mysqldb.FaultContention || !mysqldb.Answered(err)
		if err == nil || !again || try == tries || ctx.Err() != nil {
			return err
		}
	}
}

// within bounds a call.
func (l *mysqlStore) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, l.timeout, fmt.Errorf("mysql took over %v", l.timeout))
}

// explain says why a call was cut off, and what to do about a table that is not there.
func (l *mysqlStore) explain(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch {
	case err == nil:
		return nil
	case mysqldb.Misworded(err):
		return fmt.Errorf("the table %s cannot be used, `migrate` makes it and docs/rights.md has the rights: %w", MySQLTable,
			err)
	case cause != nil:
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// sorted are the texts of names in their order.
func sorted(names []lock.Name) []string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = n.String()
	}
	slices.Sort(texts)
	return texts
}

// places is a list of n placeholders.
func places(n int) string { return "(" + strings.Repeat("?, ", n-1) + "?)" }

func anys(texts []string) []any {
	args := make([]any, len(texts), len(texts)+1)
	for i, text := range texts {
		args[i] = text
	}
	return args
}
