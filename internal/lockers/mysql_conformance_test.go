package lockers_test

import (
	"database/sql"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// Given a table in MySQL, then it passes the suite that each lock must pass: one holder, expiry, renewal, lost
// replies, its server gone.
func TestMySQLIsALock(t *testing.T) {
	t.Parallel()
	locktest.Run(t, func(t *testing.T) locktest.Backend { return newMySQLBackend(t, stack.MySQL(t)) })
}

// mysqlBackend is a schema of the tests' server, behind a wire of its own: to be without the server is to be without
// the wire.
type mysqlBackend struct {
	dsn  string
	wire *stack.TCPProxy
	db   *sql.DB // of the test itself
}

var _ locktest.Backend = mysqlBackend{}

func newMySQLBackend(t *testing.T, dsn string) mysqlBackend {
	t.Helper()
	db, _, err := dedup.Open(t.Context(), stack.ForMigrations(t, dsn), dedup.OpenOptions{MaxOpen: 2})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	tables := []dedup.MigrationSet{{Name: lockers.MigrationSet, Files: lockers.Migrations()}}
	if err := dedup.Migrate(t.Context(), db, dedup.MigrateOptions{Extra: tables}); err != nil {
		t.Fatal(err)
	}
	return mysqlBackend{dsn, stack.Proxy(t, stack.Addr(t, dsn)), pool}
}

func (b mysqlBackend) open(t *testing.T, wire *stack.TCPProxy, o lock.Options) *lockers.Lock {
	t.Helper()
	return openLock(t, lockers.Servers{Kind: lock.KindMySQL, MySQLDSN: wire.Through(b.dsn)}, o)
}

func (b mysqlBackend) Open(t *testing.T, o lock.Options) lock.Locker {
	t.Helper()
	return b.open(t, b.wire, o)
}

func (b mysqlBackend) OpenLossy(t *testing.T, o lock.Options) (lock.Locker, func(), func() int) {
	t.Helper()
	wire := stack.Proxy(t, stack.Addr(t, b.dsn))
	lose, lost := wire.Losing("rollbackd:")
	return b.open(t, wire, o), lose, lost
}

func (mysqlBackend) Die(*testing.T, lock.Locker) {}

func (mysqlBackend) Marks() bool { return false }

func (b mysqlBackend) Spoil(t *testing.T, name lock.Name) { b.set(t, name, "nobody's") }

func (b mysqlBackend) Forget(t *testing.T, name lock.Name) { b.set(t, name, "lock:host/1/gone/0/7") }

func (b mysqlBackend) set(t *testing.T, name lock.Name, value string) {
	t.Helper()
	const statement = "REPLACE INTO rollbackd_lock VALUES (?, ?, '9999-12-31')"
	_, err := b.db.ExecContext(t.Context(), statement, name.String(), value)
	if err != nil {
		t.Fatal(err)
	}
}

func (b mysqlBackend) Stop(*testing.T) {
	b.wire.Refuse(true)
	b.wire.Cut()
}

func (b mysqlBackend) Start(*testing.T) { b.wire.Refuse(false) }
