package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/sqltext"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// ErrEndsTransaction says that a handler asked for a statement that ends its transaction, or changes how transactions
// end, or what the engine's statements in it mean: their schema, their time, how they are read. It was not sent.
var ErrEndsTransaction = errors.New("a handler must not commit, roll back or change its transaction, nor run what " +
	"commits it as DDL does: return nil or an error instead")

// errUnread says that a handler asked for a statement that nobody here can read, while others share its transaction, or
// a row in it says success already. It was not sent: the message is claimed, and attempted by itself.
var errUnread = errors.New("a statement that may end the transaction is run for one claimed message at a time")

// errEnded says that the transaction in which a handler was called is not there any more.
var errEnded = errors.New("the handler has ended its transaction: nobody knows what it did")

// errPrepared says that a handler asked for prepared statements.
var errPrepared = errors.New("a handler's transaction takes no prepared statements: leave gorm's PrepareStmt off")

// guardedTx is the transaction as a handler gets it. It reads each text before that is sent, and refuses what ends the
// transaction. After the first failed statement it refuses all others: after a deadlock (1213) the server has rolled
// the transaction back and the next statement would commit by itself, and after a lock wait timeout (1205) only that
// statement is gone and a swallowed error would commit half an effect.
type guardedTx struct {
	tx *sql.Tx
	// alone: there is one message, and no row says success before its effect, so that what nobody can read may run.
	alone bool
	// Only the handler's goroutine touches these.
	ours   bool         // whose statements these are: the engine's, or the handler's
	last   sqltext.Kind // of the handler's last statement
	unread string       // the last one that nobody could read, if it ran
	failed error        // of the first statement that failed
	rows   *sql.Rows    // of the last query
	anew   bool         // another call begins: its first statement closes what the one before has not read

	over bool // the handler has ended the transaction
	left bool // the handler does not return and has it still; only the worker's goroutine touches this

	looked *checkedTx // nil: nobody looks, or no handler was called yet

	// changed counts, in a rehearsal, the rows that each table's statements have changed; nil: it is none. Who writes to
	// it holds counting: goroutines of a handler that share its transaction must not end the process.
	changed  map[string]int64
	counting sync.Mutex
}

var (
	_ gorm.ConnPool    = (*guardedTx)(nil)
	_ gorm.TxCommitter = (*guardedTx)(nil) // so that gorm nests transactions as savepoints
)

// note keeps the first error. A duplicate is none: the server has undone that statement and nothing else, and handlers
// find out by it that something is there. What others than one plain statement may have done before is not undone.
func (g *guardedTx) note(err error) error {
	if err != nil && g.failed == nil && (g.ours || g.last >= sqltext.Opaque || !mysqldb.Repeats(err)) {
		g.failed = err
	}
	return err
}

func (g *guardedTx) refuse() error {
	switch {
	case g.failed != nil:
		return fmt.Errorf("the transaction ended with an earlier statement's error: %w", g.failed)
	case isOpen(g.rows):
		return g.note(mysqldb.ErrRowsOpen)
	}
	return nil
}

// admit reads what the handler wants to send. ctx is that of the statement.
func (g *guardedTx) admit(ctx context.Context, query string) (context.Context, error) {
	if err := g.refuse(); err != nil || g.ours {
		return ctx, err
	}
	var what string
	switch g.last, what = sqltext.Read(query); {
	case g.last == sqltext.Ending:
		return ctx, g.note(Permanent(fmt.Errorf("%q is refused: %w", what, ErrEndsTransaction)))
	case g.last == sqltext.Opaque && !g.alone:
		return ctx, g.note(fmt.Errorf("%q: %w", what, errUnread))
	case g.last == sqltext.Opaque:
		g.unread = what
	}
	if g.last >= sqltext.Lasting {
		ctx = mysqldb.LastUse(ctx)
	}
	if g.anew {
		ctx, g.anew = mysqldb.AfterRows(ctx), false
	}
	return ctx, nil
}

func (g *guardedTx) save(ctx context.Context) error {
	if _, err := g.ExecContext(ctx, "SAVEPOINT "+sqltext.OurSavepoint); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	return nil
}

// returned takes in that a call of the handler has returned. The transaction must be the one that the engine began:
// that is shown by what is done to its savepoint, RELEASE or ROLLBACK TO. It is not asked when the server may have
// ended it by itself.
func (g *guardedTx) returned(ctx context.Context, do string) error {
	g.closeRows()
	if ctx.Err() != nil || g.failed != nil && (g.unread == "" || mysqldb.RolledBack(g.failed)) {
		return nil
	}
	_, err := g.tx.ExecContext(mysqldb.AfterRows(ctx), do+" SAVEPOINT "+sqltext.OurSavepoint)
	if g.over = mysqldb.NoSavepoint(err); !g.over {
		return err
	}
	_, _ = g.tx.ExecContext(mysqldb.LastUse(ctx), "DO 0") // nobody knows what the session is like
	if g.unread != "" {
		return fmt.Errorf("%w; %q may have ended it", errEnded, g.unread)
	}
	return errEnded
}

// ofCall is err, which a call for one message has returned, or what it has not told.
func (g *guardedTx) ofCall(err error) error {
	if g.closeRows(); err == nil || errors.Is(g.failed, ErrEndsTransaction) {
		return g.failed
	}
	return err
}

// closeRows closes what a call has forgotten, so that the next one need not answer for it.
func (g *guardedTx) closeRows() {
	g.anew = true
	if isOpen(g.rows) {
		_ = g.note(g.rows.Close())
	}
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
func (g *guardedTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if _, err := g.admit(ctx, query); err != nil {
		return nil, err
	}
	return nil, g.note(errPrepared)
}

// ExecContext runs a statement in the transaction.
func (g *guardedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx, err := g.admit(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err := g.tx.ExecContext(ctx, query, args...)
	if err == nil {
		g.count(query, res)
	}
	return res, g.note(err)
}

// count takes in what a statement has changed; a query, which has no res, changes rows too if it returns them.
func (g *guardedTx) count(query string, res sql.Result) {
	if g.changed == nil || g.ours || !sqltext.Writes(query) {
		return
	}
	var n int64
	if res != nil {
		if n, _ = res.RowsAffected(); n == 0 {
			return
		}
	}
	g.counting.Lock()
	defer g.counting.Unlock()
	g.changed[sqltext.Target(query)] += n
}

// QueryContext queries in the transaction.
func (g *guardedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx, err := g.admit(ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := g.tx.QueryContext(ctx, query, args...)
	g.count(query, nil)
	g.rows = rows
	return rows, g.note(err)
}

// refusedRow is the row of a query that is not sent: of a cancelled context, because a *sql.Row cannot carry a foreign
// error.
func (g *guardedTx) refusedRow(ctx context.Context, err error, query string, args []any) *sql.Row {
	over, cancel := context.WithCancelCause(ctx)
	cancel(err)
	return g.tx.QueryRowContext(over, query, args...)
}

// QueryRowContext queries one row in the transaction.
func (g *guardedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx, err := g.admit(ctx, query)
	if err != nil {
		return g.refusedRow(ctx, err, query, args)
	}
	row := g.tx.QueryRowContext(ctx, query, args...)
	g.count(query, nil)
	_ = g.note(row.Err())
	return row
}

// Commit refuses: the engine commits.
func (g *guardedTx) Commit() error { _, err := g.admit(context.Background(), "COMMIT"); return err }

// Rollback refuses: the engine rolls back.
func (g *guardedTx) Rollback() error { _, err := g.admit(context.Background(), "ROLLBACK"); return err }

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
