package mysqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
)

// Process is what a server tells of a connection.
type Process struct {
	Host      string // where it comes from, mostly with its port
	State     string // what it is at, in the server's words
	Statement string // its first 100 characters; "" when it has none at work
}

// ProcessOf looks at the connection of this number: sql.ErrNoRows when there is none, or when this user may not see it.
// Everybody sees its own.
//
// It asks by SHOW PROCESSLIST. information_schema.PROCESSLIST fails on MySQL 9 as a whole, whatever is selected of it,
// while any visible connection has bytes in its statement that are no text, such as our keys and hashes (error 3854).
func ProcessOf(ctx context.Context, db *sql.DB, connection int64) (Process, error) {
	rows, err := db.QueryContext(ctx, "SHOW PROCESSLIST")
	if err != nil {
		return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
	}
	var id int64
	var host, state, statement sql.NullString
	into := make([]any, len(columns)) // MariaDB has one more than MySQL
	for i, name := range columns {
		switch {
		case strings.EqualFold(name, "Id"):
			into[i] = &id
		case strings.EqualFold(name, "Host"):
			into[i] = &host
		case strings.EqualFold(name, "State"):
			into[i] = &state
		case strings.EqualFold(name, "Info"):
			into[i] = &statement
		default:
			into[i] = new(sql.RawBytes)
		}
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
		}
		if id == connection {
			return Process{Host: host.String, State: state.String, Statement: statement.String}, nil
		}
	}
	if err := rows.Err(); err != nil {
		return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
	}
	return Process{}, sql.ErrNoRows
}
