package stack

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
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

// session is a pool, a connection or a transaction.
type session interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Exec runs a statement, also at the end of the test.
func Exec(t testing.TB, db session, query string, args ...any) {
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

// One is the one value that a query answers, also at the end of the test.
func One[T any](t testing.TB, db session, query string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRowContext(context.WithoutCancel(t.Context()), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// Number is the one that a query answers, also at the end of the test.
func Number(t testing.TB, db session, query string, args ...any) int {
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

// KeepStatements has this database server write down every statement that it gets, for [Server.WholeReads].
func (s *Server) KeepStatements(t testing.TB) {
	t.Helper()
	execMySQL(t, s.url, "SET GLOBAL log_output = 'TABLE'")
	execMySQL(t, s.url, "SET GLOBAL general_log = ON")
}

// WholeReads asks the server how it executes each statement over these tables that it was given since KeepStatements,
// in a database that dsn names, and returns those that read a table from end to end; and how many different statements
// it looked at. What reads a page of a table in the order of its key, from the first row on, is none of them.
func (s *Server) WholeReads(t testing.TB, dsn string, tables ...string) (reads []string, looked int) {
	t.Helper()
	execMySQL(t, s.url, "SET GLOBAL general_log = OFF")
	db := require.Get(sql.Open("mysql", dsn))(t)
	defer db.Close()
	statements := statementsOver(t, db, tables)
	for _, text := range statements {
		for _, plan := range RowsOf(t, db, Explain+text) {
			table := plan["table"]
			whole := plan["type"] == "ALL" || plan["type"] == "index" && strings.Contains(text, " WHERE ")
			if derived := strings.HasPrefix(table, "<"); whole && !derived && table != "rollbackd_meta" { // of few rows
				reads = append(reads, "all of "+table+": "+text[:min(len(text), 1000)])
			}
		}
	}
	return reads, len(statements)
}

var literals = regexp.MustCompile(`_binary'(\\.|[^'])*'|'(\\.|[^'])*'|\b\d+\b`)

// statementsOver are the statements in the server's log that read these tables, each once whatever its values are.
func statementsOver(t testing.TB, db *sql.DB, tables []string) (all []string) {
	t.Helper()
	ours := regexp.MustCompile(`\b(` + strings.Join(tables, "|") + ")\\b")
	var seen []string
	for _, row := range RowsOf(t, db, "SELECT argument FROM mysql.general_log WHERE command_type IN "+
		"('Query', 'Execute') ORDER BY event_time") {
		text := row["argument"]
		shape := literals.ReplaceAllString(text, "?")
		verb, _, _ := strings.Cut(text, " ")
		if slices.Contains([]string{"SELECT", "UPDATE", "DELETE"}, verb) && ours.MatchString(text) &&
			!strings.Contains(text, "information_schema") && !slices.Contains(seen, shape) {
			seen, all = append(seen, shape), append(all, text)
		}
	}
	return all
}

// RowsOf are the rows that a query of a pool, a connection or a transaction finds, each by the names of its columns.
func RowsOf(t testing.TB, db session, query string, args ...any) (all []map[string]string) {
	t.Helper()
	rows := require.Get(db.QueryContext(t.Context(), query, args...))(t)
	defer rows.Close()
	columns := require.Get(rows.Columns())(t)
	values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		require.OK(t, rows.Scan(into...))
		row := map[string]string{}
		for i, c := range columns {
			row[c] = values[i].String
		}
		all = append(all, row)
	}
	require.OK(t, rows.Err())
	return all
}

// made holds, by name, the statements that make what [Tables] has made once. It is package state as shared is.
var made sync.Map

type script struct {
	once sync.Once
	text string // empty: it could not be made
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Tables has migrate make its tables in the empty database that dsn names. Later tests of this process that name the
// same get the same, rows included, by one request: a migration goes through all that the tables ever were. A UUID
// becomes another one, as that of a log is nobody else's.
func Tables(t testing.TB, dsn, name string, migrate func()) {
	t.Helper()
	one, _ := made.LoadOrStore(name, &script{})
	s, first := one.(*script), false
	s.once.Do(func() {
		first = true
		migrate()
		s.text = statements(t, dsn)
	})
	switch {
	case first:
	case s.text == "":
		migrate()
	default:
		config := parseDSN(t, dsn)
		config.MultiStatements = true
		id := make([]byte, 16)
		_, _ = rand.Read(id) // it never fails
		uuid := fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
		execMySQL(t, config.FormatDSN(), uuids.ReplaceAllString(s.text, uuid))
	}
}

// statements are those that make a database's tables, with their rows, and its views.
func statements(t testing.TB, dsn string) string {
	t.Helper()
	db := require.Get(sql.Open("mysql", dsn))(t)
	defer db.Close()
	var all strings.Builder
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	for _, table := range RowsOf(t, db, "SELECT table_name AS name, table_type AS kind FROM information_schema.tables "+
		"WHERE table_schema = DATABASE() ORDER BY table_type") { // BASE TABLE, VIEW
		name := table["name"]
		shown := RowsOf(t, db, "SHOW CREATE TABLE "+name)[0]
		all.WriteString(shown["Create Table"] + shown["Create View"] + ";\n")
		if table["kind"] == "VIEW" {
			continue
		}
		for _, row := range RowsOf(t, db, "SELECT * FROM "+name) {
			columns := slices.Sorted(maps.Keys(row))
			values := make([]string, len(columns))
			for i, c := range columns {
				values[i] = "'" + quoted.Replace(row[c]) + "'"
			}
			fmt.Fprintf(&all, "INSERT INTO %s (%s) VALUES (%s);\n", name, strings.Join(columns, ", "),
				strings.Join(values, ", "))
		}
	}
	return strings.ReplaceAll(all.String(), "`"+parseDSN(t, dsn).DBName+"`.", "")
}
