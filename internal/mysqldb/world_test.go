package mysqldb

import (
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// world is a database of the test's own with a table and a row in it.
type world struct {
	t    testing.TB
	dsn  string
	pool *sql.DB
}

// newWorld has its test run beside others.
func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorldOn(t, stack.MySQL(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	w := &world{t, dsn, poolOf(t, open(t, dsn))}
	w.exec("CREATE TABLE goods (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB")
	w.exec("INSERT INTO goods VALUES (1, 0)")
	return w
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.pool, text, args...)
}

func open(t testing.TB, dsn string) *gorm.DB {
	t.Helper()
	return openWith(t, dsn, Options{})
}

func openWith(t testing.TB, dsn string, o Options) *gorm.DB {
	t.Helper()
	db := require.First(Open(t.Context(), dsn, o))(t)
	pool := poolOf(t, db)
	t.Cleanup(func() { pool.Close() })
	return db
}

func poolOf(t testing.TB, db *gorm.DB) *sql.DB {
	t.Helper()
	return require.Get(db.DB())(t)
}
