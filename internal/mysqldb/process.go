package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	type row struct {
		id int64
		Process
	}
	all, err := List(ctx, db, func(rows *sql.Rows) (r row, err error) {
		var skip sql.RawBytes
		into := []any{&r.id, &skip, OrZero(&r.Host), &skip, &skip, &skip, OrZero(&r.State), OrZero(&r.Statement)}
		columns, err := rows.Columns()
		for range len(columns) - len(into) { // MariaDB has one more than MySQL
			into = append(into, &skip)
		}
		return r, errors.Join(err, rows.Scan(into...))
	}, "SHOW PROCESSLIST")
	if err != nil {
		return Process{}, fmt.Errorf("look at connection %d: %w", connection, err)
	}
	for _, r := range all {
		if r.id == connection {
			return r.Process, nil
		}
	}
	return Process{}, sql.ErrNoRows
}
