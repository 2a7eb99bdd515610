package consumertest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Statement is one that a handler has sent.
type Statement struct {
	Query string
	Args  []any
}

// Answer is what comes of a statement that is not executed.
type Answer struct {
	Changed, InsertID int64    // of one that writes
	Columns           []string // of one that reads
	Rows              [][]any  // as many values as columns
	Err               error    // a *mysql.MySQLError is read as MySQL's own
}

// RowsAffected is Changed.
func (a Answer) RowsAffected() (int64, error) { return a.Changed, nil }

// LastInsertId is InsertID.
func (a Answer) LastInsertId() (int64, error) { return a.InsertID, nil }

// state is what a transaction, or all that are committed, have done.
type state struct {
	outbox     Outbox
	statements []Statement
}

// connector makes connections of a trial, whose transactions run in its database, if it has one.
type connector struct{ w *Trial }

// Connect is called by database/sql.
func (c connector) Connect(context.Context) (driver.Conn, error) { return &conn{w: c.w}, nil }

// Driver is called by database/sql.
func (c connector) Driver() driver.Driver { return nil }

type conn struct {
	w     *Trial
	in    bool // a transaction
	tx    *sql.Tx
	now   state
	saved map[string]state
	rows  *rows // of the last query
}

var errOutside = errors.New("consumertest: no statement runs outside the handler's transaction")

// Prepare is called by nobody: a handler's transaction takes no prepared statements.
func (c *conn) Prepare(string) (driver.Stmt, error) { return nil, errOutside }

// Begin is called by nobody.
func (c *conn) Begin() (driver.Tx, error) { return nil, errOutside }

// Close is called by database/sql.
func (c *conn) Close() error { return nil }

// BeginTx begins with what is committed.
func (c *conn) BeginTx(ctx context.Context, _ driver.TxOptions) (driver.Tx, error) {
	c.in, c.tx, c.now, c.saved = true, nil, c.w.committed, map[string]state{}
	c.now.statements = slices.Clip(c.now.statements)
	c.now.outbox.messages = slices.Clip(c.now.outbox.messages)
	if c.w.o.DB == nil {
		return c, nil
	}
	pool, err := c.w.o.DB.DB()
	if err == nil {
		c.tx, err = pool.BeginTx(ctx, nil)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Commit is called by database/sql.
func (c *conn) Commit() error {
	c.in = false
	if c.tx != nil {
		if err := c.tx.Commit(); err != nil {
			return err
		}
	}
	c.w.committed = c.now
	return nil
}

// Rollback is called by database/sql.
func (c *conn) Rollback() error {
	c.in = false
	if c.tx != nil {
		return c.tx.Rollback()
	}
	return nil
}

// savepoint is the name in a statement that makes or ends one; "" in another.
func savepoint(query string) (verb, name string) {
	words := strings.Fields(strings.ToUpper(query))
	if len(words) > 1 && (words[0] == "SAVEPOINT" || words[0] == "RELEASE" || words[0] == "ROLLBACK") {
		return words[0], words[len(words)-1]
	}
	return "", ""
}

// enter is what comes before each statement.
func (c *conn) enter(query string) error {
	_, name := savepoint(query)
	switch {
	case !c.in:
		return errOutside
	case c.rows == nil || c.rows.closed:
		return nil
	case name == "":
		return mysqldb.ErrRowsOpen
	}
	return c.rows.Close()
}

// ExecContext is called by database/sql.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := c.enter(query); err != nil {
		return nil, err
	}
	s := statementOf(query, args)
	if isOutbox(query) {
		return c.now.outbox.ExecContext(ctx, query, s.Args...)
	}
	verb, name := savepoint(query)
	var res driver.Result = Answer{}
	var err error
	switch {
	case c.tx != nil:
		res, err = c.tx.ExecContext(ctx, query, s.Args...)
	case verb == "":
		answer := c.w.answer(s)
		res, err = answer, answer.Err
	}
	switch {
	case err != nil:
		return nil, err
	case verb == "SAVEPOINT":
		c.saved[name] = state{Outbox{slices.Clip(c.now.outbox.messages)}, slices.Clip(c.now.statements)}
	case verb == "ROLLBACK":
		c.now = c.saved[name]
	case verb == "":
		c.now.statements = append(c.now.statements, s)
	}
	return res, nil
}

// QueryContext is called by database/sql.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := c.enter(query); err != nil {
		return nil, err
	}
	s := statementOf(query, args)
	if c.tx != nil {
		found, err := c.tx.QueryContext(ctx, query, s.Args...)
		if err != nil {
			return nil, err
		}
		columns, err := found.Columns()
		if err != nil {
			return nil, errors.Join(err, found.Close())
		}
		c.rows = &rows{columns: columns, next: func(into []driver.Value) error { return read(found, into) }, end: found.Close}
	} else {
		answer := c.w.answer(s)
		if answer.Err != nil {
			return nil, answer.Err
		}
		left := answer.Rows
		c.rows = &rows{columns: answer.Columns, end: func() error { return nil }, next: func(into []driver.Value) error {
			if len(left) == 0 {
				return io.EOF
			}
			for i := range into {
				into[i] = left[0][i]
			}
			left = left[1:]
			return nil
		}}
	}
	c.now.statements = append(c.now.statements, s)
	return c.rows, nil
}

func (w *Trial) answer(s Statement) Answer {
	if w.o.Answer == nil {
		return Answer{Changed: 1}
	}
	return w.o.Answer(s)
}

func statementOf(query string, args []driver.NamedValue) Statement {
	s := Statement{Query: query}
	for _, a := range args {
		s.Args = append(s.Args, a.Value)
	}
	return s
}

// read reads a row of the trial's database.
func read(found *sql.Rows, into []driver.Value) error {
	switch more := found.Next(); {
	case found.Err() != nil:
		return found.Err()
	case !more:
		return io.EOF
	}
	values, at := make([]any, len(into)), make([]any, len(into))
	for i := range values {
		at[i] = &values[i]
	}
	err := found.Scan(at...)
	for i, v := range values {
		into[i] = v
	}
	return err
}

// rows are those of a query.
type rows struct {
	columns []string
	next    func([]driver.Value) error
	end     func() error
	closed  bool
}

// Columns is called by database/sql, as the others.
func (r *rows) Columns() []string { return r.columns }

// Next reads a row.
func (r *rows) Next(into []driver.Value) error { return r.next(into) }

// Close may be called twice.
func (r *rows) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.end()
}
