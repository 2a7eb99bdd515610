package consumertest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

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

// clip keeps what is added to a copy out of all others.
func (s state) clip() state {
	return state{Outbox{messages: slices.Clip(s.outbox.messages)}, slices.Clip(s.statements)}
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
	c.in, c.tx, c.now, c.saved, c.rows = true, nil, c.w.committed.clip(), map[string]state{}, nil
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
func (c *conn) enter(query string, args []driver.NamedValue) (Statement, error) {
	s := Statement{Query: query}
	for _, a := range args {
		s.Args = append(s.Args, a.Value)
	}
	verb, name := savepoint(query)
	switch _, known := c.saved[name]; {
	case !c.in:
		return s, errOutside
	case name == "" && c.rows != nil && !c.rows.closed:
		return s, mysqldb.ErrRowsOpen
	case name != "" && verb != "SAVEPOINT" && !known:
		return s, &mysql.MySQLError{Number: 1305, Message: "SAVEPOINT " + name + " does not exist"}
	}
	c.rows = nil
	return s, nil
}

// took takes in that a statement has had its effect.
func (c *conn) took(s Statement) {
	switch verb, name := savepoint(s.Query); verb {
	case "SAVEPOINT":
		c.saved[name] = c.now.clip()
	case "ROLLBACK":
		c.now = c.saved[name]
	case "":
		c.now.statements = append(c.now.statements, s)
	}
}

// ExecContext is called by database/sql.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.enter(query, args)
	if err != nil {
		return nil, err
	}
	var res driver.Result
	switch {
	case isOutbox(query):
		return c.now.outbox.ExecContext(ctx, query, s.Args...)
	case c.tx != nil:
		res, err = c.tx.ExecContext(ctx, query, s.Args...)
	default:
		a := c.w.answer(s)
		res, err = a, a.Err
	}
	if err == nil {
		c.took(s)
	}
	return res, err
}

// QueryContext is called by database/sql.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.enter(query, args)
	if err != nil {
		return nil, err
	}
	a := Answer{}
	if c.tx != nil {
		a.Columns, a.Rows, a.Err = read(c.tx.QueryContext(ctx, query, s.Args...))
	} else {
		a = c.w.answer(s)
	}
	if a.Err != nil {
		return nil, a.Err
	}
	c.took(s)
	c.rows = &rows{Answer: a}
	return c.rows, nil
}

func (w *Trial) answer(s Statement) Answer {
	switch _, name := savepoint(s.Query); {
	case name != "":
		return Answer{}
	case w.o.Answer == nil:
		return Answer{Changed: 1}
	}
	return w.o.Answer(s)
}

// read reads all rows of an answer.
func read(found *sql.Rows, err error) (columns []string, all [][]any, _ error) {
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = found.Close() }()
	columns, err = found.Columns()
	for err == nil && found.Next() {
		values, at := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			at[i] = &values[i]
		}
		err = found.Scan(at...)
		all = append(all, values)
	}
	return columns, all, errors.Join(err, found.Err())
}

// rows are those of a query.
type rows struct {
	Answer
	closed bool
}

// Columns is called by database/sql, as the others.
func (r *rows) Columns() []string { return r.Answer.Columns }

// Next reads a row.
func (r *rows) Next(into []driver.Value) error {
	if len(r.Rows) == 0 {
		return io.EOF
	}
	for i := range into {
		into[i] = r.Rows[0][i]
	}
	r.Rows = r.Rows[1:]
	return nil
}

// Close may be called twice.
func (r *rows) Close() error {
	r.closed = true
	return nil
}
