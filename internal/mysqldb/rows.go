package mysqldb

import (
	"context"
	"database/sql"
)

// Queryer runs queries; *sql.DB, *sql.Tx and *sql.Conn are some.
type Queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// List reads all rows of a query's answer.
func List[T any](
	ctx context.Context, on Queryer, scan func(*sql.Rows) (T, error), text string, args ...any,
) (all []T, err error) {
	rows, err := on.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		one, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// OrZero is where a column goes that may be NULL, which is the zero value.
func OrZero[T any](into *T) sql.Scanner { return orZero[T]{into} }

type orZero[T any] struct{ into *T }

// Scan is called by database/sql.
func (o orZero[T]) Scan(v any) error {
	var n sql.Null[T]
	err := n.Scan(v)
	*o.into = n.V
	return err
}
