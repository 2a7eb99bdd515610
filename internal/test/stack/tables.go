package stack

import (
	"crypto/rand"
	"database/sql"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
)

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
