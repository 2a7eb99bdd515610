package stack

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"testing"
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
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	statements := statementsOver(t, db, tables)
	for _, text := range statements {
		for _, plan := range plansOf(t, db, text) {
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
	rows, err := db.QueryContext(t.Context(), "SELECT argument FROM mysql.general_log WHERE command_type IN "+
		"('Query', 'Execute') ORDER BY event_time")
	if err != nil {
		t.Fatal("read the general log: ", err)
	}
	defer rows.Close()
	var seen []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal("read the general log: ", err)
		}
		shape := literals.ReplaceAllString(text, "?")
		verb, _, _ := strings.Cut(text, " ")
		if slices.Contains([]string{"SELECT", "UPDATE", "DELETE"}, verb) && ours.MatchString(text) &&
			!strings.Contains(text, "information_schema") && !slices.Contains(seen, shape) {
			seen, all = append(seen, shape), append(all, text)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal("read the general log: ", err)
	}
	return all
}

// plansOf are the lines of a statement's plan, each by the names of its columns.
func plansOf(t testing.TB, db *sql.DB, text string) (plans []map[string]string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), Explain+text)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		plan := map[string]string{}
		for i, c := range columns {
			plan[c] = values[i].String
		}
		plans = append(plans, plan)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plans
}
