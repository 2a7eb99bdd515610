package lockers

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/lock"
)

// MigrationSet is the name under which the versions of [Migrations] are counted in a schema. It never changes.
const MigrationSet = "lock"

//go:embed migrations
var migrationFiles embed.FS

// Migrations are the steps that make the table of the lock in MySQL, as files for goose.
func Migrations() fs.FS {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // only a path that is not valid is refused
	}
	return files
}

// MySQLTable is the table of the lock in MySQL.
const MySQLTable = "rollbackd_lock"

// inMySQL is the lock over rows of a table of MySQL or MariaDB, for who has no Redis. A row is judged by the server's
// clock alone. It writes no done markers: each would be a row to insert and to delete beside that of the consumer log,
// which stands on the same server and knows more. So Done gives the names back.
//
// All statements commit by themselves, and all of them meet rows in the order of their names: no two wait for each
// other, and no lock of a row outlives its statement.
type inMySQL struct {
	db      *gorm.DB
	*sql.DB // of db, for statements whose answer says more
	ttl     time.Duration
}

// lockWait is the shortest that MySQL knows.
const lockWait = time.Second

// openMySQL makes a pool of the lock's own, so that it never takes a connection from a lane: with the settings that all
// pools of rollbackd have, and the shortest wait for locks of rows. It asks MySQL nothing.
func (l *Lock) openMySQL(ctx context.Context, s Servers, o lock.Options) error {
	db, _, err := mysqldb.Open(ctx, s.MySQLDSN, mysqldb.Options{ // the pool of the log has said what the DSN is warned of
		Program: s.Name, MaxOpen: max(s.Connections, 2), LockWait: lockWait,
		DialTimeout: o.Timeout, ReadTimeout: lockWait + o.Timeout, WriteTimeout: lockWait + o.Timeout,
		CurrentDSN: s.CurrentMySQLDSN, Opened: s.Opened, TLS: s.MySQLTLS, Warn: func(error) {}, // likewise
	})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return fmt.Errorf("the database handle: %w", err)
	}
	store := &inMySQL{db, pool, o.LockTTL}
	l.Closer = store
	l.Locker, err = lock.Over("the lock in mysql", store, o)
	return err
}

// now is the server's clock. It stands still within a statement.
const now = "UTC_TIMESTAMP(6)"

// chunk bounds a statement, so that it is none that the server finds too large or that runs for long.
const chunk = 1000

// endless is the number of TTLs that no lock of ours has left. A lock that is renewed while it is looked at has a bit
// more than one: the look's clock is that of its beginning.
const endless = 2

// Take is one INSERT of all names. Where a row stands already that is over, or ours, it is written over; and any such
// row leaves a mark in what the server says of the statement (LAST_INSERT_ID), so that only who has met one asks what
// stands there. The same statement may be sent again after a lost reply.
func (m *inMySQL) Take(ctx context.Context, value string, names []lock.Name) ([]lock.Held, error) {
	texts := sorted(names)
	met, err := m.insert(ctx, value, texts, m.ttl)
	if err != nil {
		return nil, err
	}
	var rows map[string]lockRow
	if met {
		if rows, err = m.look(ctx, texts); err != nil {
			return nil, err
		}
	}
	held := make([]lock.Held, len(names))
	for i, n := range names {
		row, ok := rows[n.String()]
		switch {
		case !met:
			held[i].Hold = lock.Mine
		case !ok: // it was in the way, and is gone
		case row.Value != value && row.Left > endless*m.ttl.Microseconds(): // nobody ends it, so nobody waits for it
			held[i].Hold = lock.Foreign
		default:
			held[i] = lock.ReadHeld(row.Value, value)
		}
	}
	return held, nil
}

// insert writes a row for each name, many in one statement. It reports whether it met rows that stood there.
func (m *inMySQL) insert(ctx context.Context, value string, names []string, ttl time.Duration) (met bool, _ error) {
	row := fmt.Sprintf("(?, ?, %s + INTERVAL %d MICROSECOND), ", now, ttl.Microseconds())
	for some := range slices.Chunk(names, chunk) {
		args := make([]any, 0, 2*len(some))
		for _, name := range some {
			args = append(args, name, value)
		}
		// In whatever order a server assigns the two columns, both follow the row as it was: a value that was taken over is
		// ours. The mark depends on the row, because a constant is looked at also when there is none.
		text := "INSERT INTO " + MySQLTable + " (name, value, expires_at) VALUES " +
			strings.TrimSuffix(strings.Repeat(row, len(some)), ", ") + " ON DUPLICATE KEY UPDATE" +
			" value = IF(expires_at <= " + now + ", VALUES(value), value)," +
			" expires_at = IF(LAST_INSERT_ID(LENGTH(name)) > 0 AND (value = VALUES(value) OR expires_at <= " + now + ")," +
			" VALUES(expires_at), expires_at)"
		err := m.insist(ctx, func() error {
			result, err := m.ExecContext(mysqldb.Repeated(ctx), text, args...)
			if err != nil {
				return err
			}
			changed, err := result.RowsAffected()
			last, err2 := result.LastInsertId()
			met = met || last != 0 || changed != int64(len(some))
			return cmp.Or(err, err2)
		})
		if err != nil {
			return met, err
		}
	}
	return met, nil
}

// change is any other statement that changes rows, with a ? for each list. It returns how many.
func (m *inMySQL) change(ctx context.Context, text string, lists ...any) (rows int64, err error) {
	err = m.insist(ctx, func() error {
		result := m.db.WithContext(ctx).Exec(text, lists...)
		rows = result.RowsAffected
		return result.Error
	})
	return rows, err
}

// insist repeats a statement whose connection broke, or that met another transaction.
func (m *inMySQL) insist(ctx context.Context, statement func() error) error {
	err := repeat(statement, func(err error) bool {
		return ctx.Err() == nil && (mysqldb.Classify(err) == mysqldb.FaultContention || !mysqldb.Answered(err))
	})
	if mysqldb.Misworded(err) {
		return fmt.Errorf("the table %s cannot be used, `migrate` makes it and docs/rights.md has the rights: %w", MySQLTable,
			err)
	}
	return err
}

// lockRow is what stands under a name.
type lockRow struct {
	Name, Value string
	Left        int64 // microseconds until it expires; negative: it has
}

// look reads the rows of names.
func (m *inMySQL) look(ctx context.Context, names []string) (map[string]lockRow, error) {
	var found []lockRow
	err := m.insist(ctx, func() error {
		return m.db.WithContext(ctx).Raw("SELECT name, value, TIMESTAMPDIFF(MICROSECOND, "+now+", expires_at) AS `left` "+
			"FROM "+MySQLTable+" FORCE INDEX (PRIMARY) WHERE name IN ?", names).Scan(&found).Error
	})
	rows := make(map[string]lockRow, len(found))
	for _, row := range found {
		rows[row.Name] = row
	}
	return rows, err
}

// GiveBack deletes the rows that have the value.
func (m *inMySQL) GiveBack(ctx context.Context, value string, names []lock.Name) error {
	_, err := m.change(mysqldb.Repeated(ctx), deleteRows+" AND l.value = ?", sorted(names), value)
	return err
}

// Mark deletes the rows, whoever holds them: the success is committed.
func (m *inMySQL) Mark(ctx context.Context, marks []lock.Mark) error {
	_, err := m.change(mysqldb.Repeated(ctx), deleteRows, sorted(lock.NamesOf(marks)))
	return err
}

const deleteRows = "DELETE l FROM " + MySQLTable + " AS l FORCE INDEX (PRIMARY) WHERE l.name IN ?"

// Renew is one UPDATE. Where it has changed less rows than there are names, some are lost.
func (m *inMySQL) Renew(ctx context.Context, names []lock.Name, values []string) (stands []bool, err error) {
	texts := sorted(names)
	ours := slices.Compact(slices.Sorted(slices.Values(values)))
	changed, err := m.change(ctx, "UPDATE "+MySQLTable+" FORCE INDEX (PRIMARY) SET expires_at = "+now+" + INTERVAL ? "+
		"MICROSECOND WHERE name IN ? AND value IN ?", m.ttl.Microseconds(), texts, ours)
	if err != nil || changed == int64(len(names)) {
		return slices.Repeat([]bool{true}, len(names)), err
	}
	rows, err := m.look(ctx, texts)
	for i, n := range names {
		stands = append(stands, err != nil || rows[n.String()].Value == values[i])
	}
	return stands, err
}

// Probe writes a row, as Take does: a server that is full or read-only answers everything else. Its name is none that a
// message has.
func (m *inMySQL) Probe(ctx context.Context) error {
	_, err := m.insert(ctx, "probe", []string{"rollbackd:probe"}, 0)
	return err
}

// Show looks at one row.
func (m *inMySQL) Show(ctx context.Context, name lock.Name) (lock.State, error) {
	rows, err := m.look(ctx, []string{name.String()})
	row, ok := rows[name.String()]
	if err != nil || !ok || row.Left <= 0 {
		return lock.State{}, err
	}
	const longest = 1 << 53 // in nanoseconds, this fits as well
	return lock.ReadState(row.Value, time.Duration(min(row.Left, longest))*time.Microsecond), nil
}

// clean reads without locks and deletes by name, see [Lock.Clean].
func (m *inMySQL) clean(ctx context.Context) (deleted int, err error) {
	const over = "expires_at < " + now + " - INTERVAL 1 MINUTE"
	for {
		var names []string
		var n int64
		err := m.db.WithContext(ctx).Raw("SELECT name FROM "+MySQLTable+" FORCE INDEX (by_expiry) WHERE "+over+
			" ORDER BY expires_at LIMIT ?", chunk).Scan(&names).Error
		if err == nil && len(names) > 0 {
			slices.Sort(names)
			n, err = m.change(ctx, deleteRows+" AND l."+over, names)
		}
		if deleted += int(n); err != nil {
			return deleted, fmt.Errorf("delete old locks: %w", err)
		} else if len(names) == 0 {
			return deleted, nil
		}
	}
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
