package stack

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
func RowsOf(t testing.TB, db queried, query string, args ...any) (all []map[string]string) {
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
