package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
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

// ErrUnknown: the answer to COMMIT was lost.
var ErrUnknown = errors.New("the outcome of COMMIT is unknown")

// InTx runs f in a READ COMMITTED transaction: under REPEATABLE READ, workers that insert neighbouring keys deadlock on
// gaps. An error of f means that nothing was committed; an error of COMMIT is [ErrUnknown].
func InTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback() // a connection that cannot roll back is gone, and its transaction with it
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// InShortTx is InTx for what locks rows and waits for none: a cluster may find out at the commit that two transactions
// met, and then it is tried again.
func InShortTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) (err error) {
	for range 5 {
		if err = InTx(ctx, db, f); Classify(err) != FaultContention {
			break
		}
	}
	return err
}

// Pairs is a condition that holds for n pairs of values of two columns, which are the beginning of an index. MariaDB
// finds an index for a list of pairs, but not in a DELETE or UPDATE for a list of one: that would read, and lock, the
// whole table. Where a table may be small, say FORCE INDEX too, or it is read from its beginning to its end, and what
// others have locked there is waited for.
func Pairs(a, b string, n int) string {
	if n == 1 {
		return a + " = ? AND " + b + " = ?"
	}
	return "(" + a + ", " + b + ") IN (" + strings.Repeat("(?, ?), ", n-1) + "(?, ?))"
}
