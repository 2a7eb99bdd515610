package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/check"
	"github.com/rollbackd/rollbackd/consumer/internal/sqltext"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// checks look at what a handler does with its transactions, and warn of it: see Config.Check.
type checks struct {
	check.Log
	orders check.Orders
	made   string // the line at which the consumer was made
	server bool   // there is one to be asked; in a rehearsal there is none
}

func newChecks(cfg Config) *checks {
	return &checks{Log: check.Log{Out: cfg.Logger}, made: check.Line(), server: true}
}

// What is warned of.
const (
	whatLasts   = "a handler has written what no rollback takes back"
	whatNothing = "a handler has returned nil without a statement"
	whatKept    = "a statement came after its handler had returned, and was refused"
	whatIdle    = "a handler has sent nothing for long while its transaction held locks"
	whatCrossed = "a handler has locked rows in another order than for another batch"
)

// idleFor is how long is long: a round trip of a handler takes a hundredth of it.
const idleFor = 100 * time.Millisecond

// errKept is what a statement gets that comes too late.
var errKept = errors.New("the handler has returned: its transaction is no longer its own")

// checkedTx is a guardedTx as a handler gets it while somebody looks, the same in each call of one transaction.
// Statements pass one at a time, so that those of goroutines which outlive the handler are seen before they are sent.
type checkedTx struct {
	*guardedTx
	checks *checks

	mu      sync.Mutex    // held while a statement runs; it guards all below
	lasting bool          // a temporary table was perhaps made or dropped, which no server rolls back
	writes  []check.Place // of statements that write, each once
	locks   []check.Lock  // in their order, behind those of the messages
	call    checkedCall
}

// checkedCall is one call of the handler.
type checkedCall struct {
	msgs   []Message
	over   bool        // the handler has returned
	sent   int         // statements
	before int         // those of them that were sent before the message at hand
	single bool        // the code for each message was looked at by itself
	holds  bool        // it has changed rows
	lastAt check.Place // of the last statement, once it holds some
	since  time.Time   // when that had its answer
}

// handle has a handler called with a transaction that is looked at. code is the handler's.
func (c *checks) handle(
	ctx context.Context, guard *guardedTx, code any, msgs []Message, call func(tx gorm.ConnPool) error,
) error {
	t := guard.looked
	if t == nil {
		t = &checkedTx{guardedTx: guard, checks: c}
		for _, m := range msgs { // those who share a message never meet: the engine locks them first, sorted
			t.locks = append(t.locks, check.Lock{Rows: m.Identity.String()})
		}
		slices.SortFunc(t.locks, func(a, b check.Lock) int { return cmp.Compare(a.Rows, b.Rows) })
		guard.looked = t
	}
	err := t.run(ctx, msgs, call)
	if err == nil && t.call.sent == 0 && !t.call.single {
		t.nothing(ctx, code, msgs[0])
	}
	if first, then, crossed := c.orders.Add(t.locks); crossed {
		t.warn(ctx, whatCrossed, then.Place, "change rows in one order, sorted by their key, or all by one statement: when "+
			"two such transactions meet, MySQL ends one (deadlock), and it is done again", slog.String("rows", then.Rows),
			slog.String("before", first.Rows), slog.String("before_line", first.Line))
	}
	t.closeRows()
	if c.server && len(t.writes) > 0 && t.failed == nil && ctx.Err() == nil && t.lasts(ctx) {
		t.tellWhatLasts(ctx)
	}
	return err
}

func (t *checkedTx) run(ctx context.Context, msgs []Message, call func(tx gorm.ConnPool) error) error {
	t.mu.Lock()
	t.call = checkedCall{msgs: msgs}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.idled(ctx, "it returned")
		t.call.over = true
	}()
	return call(t)
}

// ofCall is err, which a call for one message has returned, or what it has not told. code is what was called; nil: what
// is called for many, which [checks.handle] looks at.
func ofCall(ctx context.Context, tx *gorm.DB, code any, m *Message, err error) error {
	switch t := SQL(tx).(type) {
	case *guardedTx:
		return t.ofCall(err)
	case *checkedTx:
		t.mu.Lock()
		defer t.mu.Unlock()
		if err = t.guardedTx.ofCall(err); code != nil {
			if err == nil && t.call.sent == t.call.before {
				t.nothing(ctx, code, *m)
			}
			t.call.single, t.call.before = true, t.call.sent
		}
	}
	return err
}

// nothing tells that the handler did nothing for a message.
func (t *checkedTx) nothing(ctx context.Context, code any, m Message) {
	at := check.Place{Line: cmp.Or(check.LineOf(code), t.checks.made)}
	t.checks.Warn(ctx, whatNothing, at, "write through the tx that the handler is given, not through a pool; return an "+
		"error where nothing could be done. If the message asks for nothing, this is as it should be",
		slog.Any("message", m.Identity))
}

// warn tells of a call, by its first message.
func (t *checkedTx) warn(ctx context.Context, what string, at check.Place, do string, attrs ...slog.Attr) {
	t.checks.Warn(ctx, what, at, do, append(attrs, slog.Any("message", t.call.msgs[0].Identity))...)
}

// enter is what comes before a statement. The caller holds mu.
func (t *checkedTx) enter(ctx context.Context, text string) (check.Place, error) {
	at := check.At(text)
	if t.call.over {
		t.warn(ctx, whatKept, at, "wait for the goroutines that use tx before the handler returns, and keep tx nowhere")
		return at, fmt.Errorf("%s: %w", cmp.Or(at.Line, at.Statement), errKept)
	}
	t.call.sent++
	t.idled(ctx, "the statement at "+cmp.Or(at.Line, at.Statement))
	return at, nil
}

// idled tells that nothing was sent for long until now.
func (t *checkedTx) idled(ctx context.Context, until string) {
	if took := time.Since(t.call.since); t.call.holds && took >= idleFor {
		t.warn(ctx, whatIdle, t.call.lastAt, "do what takes long before the first statement that writes, or outside: by "+
			"consumer.Calls, or by a message in the outbox", slog.Duration("idle", took.Round(time.Millisecond)),
			slog.String("until", until))
	}
}

// leave is what comes behind a statement; a query has no res. The caller holds mu.
func (t *checkedTx) leave(at check.Place, text string, args []any, res sql.Result, err error) {
	if err != nil {
		return
	}
	changed := int64(-1) // nobody knows
	if res != nil {
		changed, _ = res.RowsAffected()
	}
	t.lasting = t.lasting || t.last == sqltext.Lasting
	writes := t.last == sqltext.Opaque || sqltext.Writes(text)
	if writes && !slices.Contains(t.writes, at) {
		t.writes = append(t.writes, at)
	}
	if t.call.holds = t.call.holds || writes && changed != 0; t.call.holds {
		t.call.lastAt, t.call.since = at, time.Now()
	}
	if at.Line == "" {
		return // of a handler of ours, which keeps its transactions apart, or sorts
	}
	rows, before := sqltext.Rows(text)
	perhaps := sqltext.Locks(text)
	if perhaps {
		rows, before = text, 0
	}
	if values, ok := valuesOf(args[min(before, len(args)):]); ok && rows != "" && (perhaps || changed > 0) {
		t.locks = append(t.locks, check.Lock{Rows: rows + values, Perhaps: perhaps, Place: at})
	}
}

// valuesOf are the values of a statement as they are sent, if that can be told.
func valuesOf(args []any) (text string, ok bool) {
	for _, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return "", false
		}
		text += fmt.Sprintf(" %#v", v)
	}
	return text, true
}

// ExecContext runs a statement in the transaction.
func (t *checkedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	res, err := t.guardedTx.ExecContext(ctx, query, args...)
	t.leave(at, query, args, res, err)
	return res, err
}

// QueryContext queries in the transaction.
func (t *checkedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.enter(ctx, query)
	if err != nil {
		return nil, err
	}
	rows, err := t.guardedTx.QueryContext(ctx, query, args...)
	t.leave(at, query, args, nil, err)
	return rows, err
}

// QueryRowContext queries one row in the transaction. What comes too late is refused as by a guardedTx.
func (t *checkedTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := t.enter(ctx, query)
	if err != nil {
		return t.refusedRow(ctx, err, query, args)
	}
	row := t.guardedTx.QueryRowContext(ctx, query, args...)
	t.leave(at, query, args, nil, row.Err())
	return row
}

const (
	checkSavepoint = "SAVEPOINT rollbackd_check"
	notRolledBack  = 1196 // the server's warning of a rollback that leaves something behind
)

// lasts asks the server whether the transaction has written what no rollback takes back. It warns of that behind a
// rollback to a savepoint, and so also behind one that had nothing to take back, whatever led the statement there: a
// name, a view, a trigger.
func (g *guardedTx) lasts(ctx context.Context) bool {
	for _, text := range []string{checkSavepoint, "ROLLBACK TO " + checkSavepoint} {
		if _, err := g.tx.ExecContext(mysqldb.AfterRows(ctx), text); err != nil {
			return false // the engine's next statement meets it too
		}
	}
	codes, err := mysqldb.List(ctx, g.tx, func(rows *sql.Rows) (code int, err error) {
		var level, says string
		err = rows.Scan(&level, &code, &says)
		return code, err
	}, "SHOW WARNINGS")
	return err == nil && slices.Contains(codes, notRolledBack)
}

// lastingTables are those that are not rolled back and that this account may see: the name, the schema if it must stand
// before that, and what to do.
const lastingTables = "SELECT table_name, NULLIF(table_schema, DATABASE()), CONCAT('the table ', table_schema, '.', " +
	"table_name, ' is ', engine, ': ALTER TABLE ', table_schema, '.', table_name, ' ENGINE = InnoDB') " +
	"FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys', " +
	"'information_schema', 'performance_schema') AND engine NOT IN " +
	"(SELECT engine FROM information_schema.engines WHERE transactions = 'YES')"

// tellWhatLasts tells which statements have written it: those that name such a table, else the last one.
func (t *checkedTx) tellWhatLasts(ctx context.Context) {
	tables, _ := mysqldb.List(ctx, t.tx, func(rows *sql.Rows) (l struct{ name, schema, do string }, err error) {
		err = rows.Scan(&l.name, mysqldb.OrZero(&l.schema), &l.do)
		return l, err
	}, lastingTables) // none: nobody knows the name
	named := t.lasting
	for _, at := range t.writes {
		for _, l := range tables {
			if sqltext.Names(at.Statement, l.name) && (l.schema == "" || sqltext.Names(at.Statement, l.schema)) {
				named = true
				t.warn(ctx, whatLasts, at, l.do)
			}
		}
	}
	if !named {
		t.warn(ctx, whatLasts, t.writes[len(t.writes)-1], "this statement, or one before it in its transaction, writes by a "+
			"view, a trigger or a procedure to a table whose engine is not InnoDB: give it that one")
	}
}
