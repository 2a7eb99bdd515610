package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// MySQL makes an empty database and returns a DSN for it, in go-sql-driver's form, of an account that may do
// everything. The database is dropped when the test ends.
func MySQL(t testing.TB) string {
	t.Helper()
	return shared[KindMySQL].get(t, KindMySQL).Database(t)
}

// Database makes an empty database on this server, as [MySQL] does on the shared one.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	config := parseDSN(t, s.url)
	name := "rollbackd_test_" + uniqueSuffix()
	config.DBName = ""
	execMySQL(t, config.FormatDSN(), "CREATE DATABASE "+name)
	t.Cleanup(func() { dropDatabase(t, config.Clone(), name) })
	own := config.Clone()
	own.DBName = name
	return own.FormatDSN()
}

// ForMigrations is dsn for connections that make tables, which takes seconds on a loaded machine: the read timeout that
// a test gives its own connections would end it half way.
func ForMigrations(t testing.TB, dsn string) string {
	t.Helper()
	config := parseDSN(t, dsn)
	config.ReadTimeout = time.Minute
	return config.FormatDSN()
}

// dropDatabase does not wait long for a transaction which a test left open, and does not mind a server which the test
// killed.
func dropDatabase(t testing.TB, config *mysql.Config, name string) {
	config.Params = map[string]string{"lock_wait_timeout": "5"} // seconds; for an ALTER or DROP it is a year by default
	config.Timeout, config.ReadTimeout = 5*time.Second, 20*time.Second
	err := onMySQL(context.Background(), config.FormatDSN(), func(ctx context.Context, db *sql.DB) {
		if db.PingContext(ctx) == nil {
			must.Exec(ctx, db, "DROP DATABASE IF EXISTS "+name)
		}
	})
	if err != nil {
		t.Errorf("drop the test's database %s (does a transaction still hold it?): %v", name, err)
	}
}

// Restricted makes an account that may only do what the grants say, each written as SQL writes it between GRANT and TO
// ("SELECT, INSERT ON consumer_log"), within the database dsn names. It returns that account's DSN and drops it when
// the test ends.
func Restricted(t testing.TB, dsn string, grants ...string) string {
	t.Helper()
	config := parseDSN(t, dsn)
	user, password := "r_"+uniqueSuffix(), rand.Text()
	execMySQL(t, dsn, fmt.Sprintf("CREATE USER '%s'@'%%' IDENTIFIED BY '%s'", user, password))
	t.Cleanup(func() { execMySQL(t, dsn, fmt.Sprintf("DROP USER '%s'@'%%'", user)) })
	for _, grant := range grants {
		execMySQL(t, dsn, fmt.Sprintf("GRANT %s TO '%s'@'%%'", grant, user))
	}
	config.User, config.Passwd = user, password
	return config.FormatDSN()
}

// told is a pool, a connection or a transaction.
type told interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Exec runs a statement, also at the end of the test.
func Exec(t testing.TB, db told, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(context.WithoutCancel(t.Context()), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Script runs the statements of a file, each of which ends with a line.
func Script(t testing.TB, db *sql.DB, path string) {
	t.Helper()
	text := require.Get(os.ReadFile(path))(t)
	for statement := range strings.SplitSeq(strings.TrimSuffix(string(text), ";\n"), ";\n") {
		Exec(t, db, statement)
	}
}

// asked is a pool, a connection or a transaction.
type asked interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

type queried interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// One is the one value that a query answers, also at the end of the test.
func One[T any](t testing.TB, db asked, query string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// Number is the one that a query answers, also at the end of the test.
func Number(t testing.TB, db asked, query string, args ...any) int {
	t.Helper()
	return One[int](t, db, query, args...)
}

func execMySQL(t testing.TB, dsn, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	require.OK(t, onMySQL(ctx, dsn, func(ctx context.Context, db *sql.DB) { must.Exec(ctx, db, statement) }))
}

// uniqueSuffix is short, lower case, and never the same twice, in no process.
func uniqueSuffix() string { return strings.ToLower(rand.Text()[:12]) }
