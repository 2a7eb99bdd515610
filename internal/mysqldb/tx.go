package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

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
