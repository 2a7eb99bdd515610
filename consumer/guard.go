package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"gorm.io/gorm"
)

// errHandlerEnded says that a handler tried to end the transaction that belongs to the engine.
var errHandlerEnded = errors.New("a handler must not commit or roll back its transaction: return nil or an error " +
	"instead")

// errPrepared says that a handler asked for prepared statements.
var errPrepared = errors.New("a handler's transaction takes no prepared statements: leave gorm's PrepareStmt off")

// errRowsOpen says that a handler went on while it had rows to read. The driver calls that a bad connection, which
// would be the server's fault and be waited for without an end.
var errRowsOpen = errors.New("a handler must close the rows of a query before its next statement")

// guardedTx is the transaction as a handler gets it. After the first failed statement it refuses all others: after a
// deadlock (1213) the server has rolled the transaction back and the next statement would commit by itself, and after a
// lock wait timeout (1205) only that statement is gone and a swallowed error would commit half an effect.
type guardedTx struct {
	tx *sql.Tx
	// Only the handler's goroutine touches these.
	ours   bool      // whose statements these are: the engine's, or the handler's
	failed error     // of the first statement that failed
	rows   *sql.Rows // of the last query

	left bool // the handler does not return and has it still; only the lane's goroutine touches this
}

var (
	_ gorm.ConnPool    = (*guardedTx)(nil)
	_ gorm.TxCommitter = (*guardedTx)(nil) // so that gorm nests transactions as savepoints
)

func (g *guardedTx) note(err error) error {
	if err != nil && g.failed == nil {
		g.failed = err
	}
	return err
}

func (g *guardedTx) refuse() error {
	switch {
	case g.failed != nil:
		return fmt.Errorf("the transaction ended with an earlier statement's error: %w", g.failed)
	case isOpen(g.rows):
		return g.note(errRowsOpen)
	}
	return nil
}

// isOpen asks for what closed rows refuse to tell.
func isOpen(rows *sql.Rows) bool {
	if rows == nil {
		return false
	}
	_, err := rows.Columns()
	return err == nil
}

// PrepareContext refuses: errors of a prepared statement would not be noted.
func (g *guardedTx) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, g.note(errPrepared)
}

// ExecContext runs a statement in the transaction.
func (g *guardedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := g.refuse(); err != nil {
		return nil, err
	}
	res, err := g.tx.ExecContext(ctx, query, args...)
	return res, g.note(err)
}

// QueryContext queries in the transaction.
func (g *guardedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := g.refuse(); err != nil {
		return nil, err
	}
	rows, err := g.tx.QueryContext(ctx, query, args...)
	g.rows = rows
	return rows, g.note(err)
}

// QueryRowContext queries one row in the transaction. A *sql.Row cannot carry a foreign error, so after a failed
// statement the row is that of a cancelled context.
func (g *guardedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := g.refuse(); err != nil {
		over, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return g.tx.QueryRowContext(over, query, args...)
	}
	row := g.tx.QueryRowContext(ctx, query, args...)
	_ = g.note(row.Err())
	return row
}

// Commit refuses: the engine commits.
func (g *guardedTx) Commit() error { return g.note(errHandlerEnded) }

// Rollback refuses: the engine rolls back.
func (g *guardedTx) Rollback() error { return g.note(errHandlerEnded) }

// SQL is the transaction of tx, as a handler was given it, for SQL that is written by hand or made by a generator. It
// is guarded like tx itself: after the first failed statement it refuses all others, and the messages are not marked
// done, also when the error is dropped. It takes no prepared statements: PrepareContext refuses.
func SQL(tx *gorm.DB) gorm.ConnPool { return tx.Statement.ConnPool }

// gormOver is db bound to tx, as a handler gets it.
func gormOver(ctx context.Context, db *gorm.DB, tx gorm.ConnPool) *gorm.DB {
	bound := db.Session(&gorm.Session{NewDB: true, Context: ctx, SkipDefaultTransaction: true})
	bound.Statement.ConnPool = tx
	bound.ConnPool = tx // where gorm's PrepareStmt looks: it must not find the pool, outside the transaction
	return bound
}
