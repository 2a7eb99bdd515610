package mysqldb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrNotCommitted means that a transaction's COMMIT was not sent, because an error had come with the rows of one of its
// queries.
var ErrNotCommitted = errors.New("the transaction had failed while rows were read, and is rolled back")

// ErrRowsOpen says that a transaction went on while it had rows to read. The driver calls that a bad connection, which
// would be the server's fault and be waited for without an end.
var ErrRowsOpen = errors.New("the rows of a query must be read or closed before the next statement")

// wholeConn is all that database/sql looks for in go-sql-driver's connection: embedding less would hide the rest.
type wholeConn interface {
	driver.Conn
	driver.Pinger
	driver.ConnBeginTx
	driver.QueryerContext
	driver.ExecerContext
	driver.ConnPrepareContext
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
}

// wholeRows is the same for rows.
type wholeRows interface {
	driver.RowsNextResultSet
	driver.RowsColumnTypeScanType
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
}

// watchedConn makes a transaction refuse every statement after an error that came with the rows of a query. A deadlock
// can come behind the column names of a locking read, where database/sql shows it to those who ask the rows for their
// error, and to nobody else; MySQL has then rolled the transaction back, and what is executed next commits by itself.
// It also tells the transaction's Activity.
type watchedConn struct {
	wholeConn
	id       int64 // the server's number of the connection
	from     sayer
	usual    time.Duration // Options.LockWait
	lockWait time.Duration // as it is set now
	inTx     bool
	failed   error     // of rows in this transaction
	activity *Activity // of this transaction, nil if nobody asks
	repeated repeated
	rows     *watchedRows // of the transaction's last query, nil when they are closed
	left     bool         // nobody may use it any more
}

// Close ends the session. One that the server has ended before, as after a freeze, cannot be told so: it is closed all
// the same, and who closes its pool has lost nothing.
func (c *watchedConn) Close() error {
	_ = c.wholeConn.Close()
	return nil
}

// IsValid tells the pool whether it may lend the connection again.
func (c *watchedConn) IsValid() bool { return !c.left && c.wholeConn.IsValid() }

// leave is err. A server that takes no statements at all, or none that writes, is left: database/sql drops the
// connection, and asks for a new one where nothing was begun, which a proxy leads elsewhere.
func (c *watchedConn) leave(err error) error {
	if !notReady(err) {
		return c.from.by(err)
	}
	c.left = true
	return fmt.Errorf("%w; this connection is left: %w", err, driver.ErrBadConn)
}

type lockWaitKey struct{}

// WithLockWait makes a context; a transaction that begins with it, on a connection of [Open], bounds each wait for a
// lock by that, and not by [Options].LockWait. It is of whole seconds.
func WithLockWait(ctx context.Context, bound time.Duration) context.Context {
	return context.WithValue(ctx, lockWaitKey{}, bound)
}

// setLockWait sets what the next transaction needs, where that differs.
func (c *watchedConn) setLockWait(ctx context.Context) error {
	want, asked := ctx.Value(lockWaitKey{}).(time.Duration)
	if !asked {
		want = c.usual
	}
	if want == c.lockWait {
		return nil
	}
	_, err := c.wholeConn.ExecContext(ctx, fmt.Sprintf(
		"SET SESSION innodb_lock_wait_timeout = %d, lock_wait_timeout = %[1]d", int64(want/time.Second)), nil)
	if err == nil {
		c.lockWait = want
	}
	return err
}

// BeginTx begins to watch.
func (c *watchedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	if err := c.setLockWait(ctx); err != nil {
		return nil, c.leave(err)
	}
	tx, err := c.wholeConn.BeginTx(ctx, o)
	if err != nil {
		return nil, c.leave(err)
	}
	c.inTx, c.failed, c.rows = true, nil, nil
	c.activity, _ = ctx.Value(activityKey{}).(*Activity)
	c.activity.on(c.id)
	return &watchedTx{tx, c}, nil
}

// request is what a context asks of the connection on which a statement runs.
type request string

const (
	lastUse   request = "last use"
	afterRows request = "after rows"
	repeating request = "repeated"
)

func (r request) in(ctx context.Context) bool { return ctx.Value(r) != nil }

// LastUse makes a context. A connection on which a statement runs with it is not lent again after its transaction: the
// statement may have changed the session.
func LastUse(ctx context.Context) context.Context { return context.WithValue(ctx, lastUse, true) }

// AfterRows makes a context. A statement that runs with it closes the rows that nobody has closed, which refuse all
// others ([ErrRowsOpen]): those of a [sql.Row] which was never read cannot be found otherwise.
func AfterRows(ctx context.Context) context.Context { return context.WithValue(ctx, afterRows, true) }

// prepare does what the contexts of a statement ask for.
func (c *watchedConn) prepare(ctx context.Context) error {
	c.left = c.left || lastUse.in(ctx)
	if c.rows != nil && afterRows.in(ctx) {
		_ = c.rows.Close()
	}
	switch {
	case !c.inTx:
		return nil
	case c.failed == nil && c.rows != nil:
		return ErrRowsOpen
	}
	return c.failed
}

// ExecContext executes a statement.
func (c *watchedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	stint := c.activity.begin(ctx, c.id, query)
	exec := c.wholeConn.ExecContext
	if repeating.in(ctx) {
		exec = c.repeated.ExecContext
	}
	res, err := exec(ctx, query, args)
	stint.end(err)
	return res, c.leave(err)
}

// QueryContext watches the rows of a transaction's query.
func (c *watchedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	stint := c.activity.begin(ctx, c.id, query)
	rows, err := c.wholeConn.QueryContext(ctx, query, args)
	stint.end(err)
	if err != nil || !c.inTx {
		return rows, c.leave(err)
	}
	c.rows = &watchedRows{rows.(wholeRows), c, ctx, query}
	return c.rows, nil
}

type watchedTx struct {
	driver.Tx
	conn *watchedConn
}

// Commit sends no COMMIT after an error: it might commit what came after MySQL had rolled back.
func (t *watchedTx) Commit() error {
	t.conn.inTx, t.conn.activity = false, nil
	if failed := t.conn.failed; failed != nil {
		return errors.Join(fmt.Errorf("%w: %w", ErrNotCommitted, failed), t.Tx.Rollback())
	}
	return t.over(t.Tx.Commit())
}

// Rollback rolls back.
func (t *watchedTx) Rollback() error {
	t.conn.inTx, t.conn.activity = false, nil
	return t.over(t.Tx.Rollback())
}

// over is the error of a transaction's end. Unless it says that the transaction is rolled back, this may still be open
// on the server: the next one on this connection would commit it.
func (t *watchedTx) over(err error) error {
	if err != nil && Classify(err) != FaultContention {
		t.conn.left = true
	}
	return t.conn.leave(err)
}

type watchedRows struct {
	wholeRows
	conn *watchedConn
	ctx  context.Context // of the query: it bounds the reading of its rows too
	text string
}

func (r *watchedRows) note(err error) error {
	if err != nil && !errors.Is(err, io.EOF) && r.conn.inTx && r.conn.failed == nil {
		r.conn.failed = r.conn.from.by(err)
	}
	return r.conn.from.by(err)
}

// Next reads a row. The server may have to wait for a lock before it can send it.
func (r *watchedRows) Next(dest []driver.Value) error {
	stint := r.conn.activity.begin(r.ctx, r.conn.id, r.text)
	err := r.wholeRows.Next(dest)
	if !errors.Is(err, io.EOF) {
		stint.end(err)
	}
	return r.note(err)
}

// NextResultSet goes on to the next result.
func (r *watchedRows) NextResultSet() error { return r.note(r.wholeRows.NextResultSet()) }

// Close reads what nobody asked for.
func (r *watchedRows) Close() error {
	if r.conn.rows == r {
		r.conn.rows = nil
	}
	return r.note(r.wholeRows.Close())
}

// Repeated makes a context for a statement with placeholders that is run again and again, word for word. A connection
// of [Open] prepares it when it comes for the second time in a row, and keeps it until another one does: the server
// then reads the values alone, and no text. It is for statements of many rows, because the second run costs a round
// trip more. On other connections the context changes nothing.
func Repeated(ctx context.Context) context.Context { return context.WithValue(ctx, repeating, true) }

// repeated is a connection that keeps one statement prepared: of 1,000 rows, that takes the server some MiB.
type repeated struct {
	wholeConn
	last    string // the last one that came
	text    string // the one that is prepared
	stmt    driver.Stmt
	refused bool // the server prepares none
}

// ExecContext executes a repeated statement, prepared if it came before.
func (r *repeated) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	again := text == r.last
	r.last = text
	if again && text != r.text && !r.refused {
		if err := r.prepare(ctx, text); err != nil {
			return nil, err
		}
	}
	if text != r.text {
		return r.wholeConn.ExecContext(ctx, text, args)
	}
	return r.stmt.(driver.StmtExecContext).ExecContext(ctx, args)
}

// prepare puts text in the place of what was prepared. A server that refuses is not asked again on this connection: it
// has too many, or is a proxy that knows none, or will say of the text too what is wrong with it.
func (r *repeated) prepare(ctx context.Context, text string) error {
	var closed error
	if r.stmt != nil {
		closed = r.stmt.Close()
	}
	r.text, r.stmt = "", nil
	stmt, err := r.PrepareContext(ctx, text)
	switch {
	case err == nil:
		r.text, r.stmt = text, stmt
	case Answered(err) && Classify(err) != FaultContention: // which may have ended the transaction
		r.refused, err = true, nil
	}
	return errors.Join(closed, err)
}
