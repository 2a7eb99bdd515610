package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/check"
	"github.com/rollbackd/rollbackd/consumer/internal/sqltext"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// checks look at what a handler does with its transactions, and warn of it: see Config.Check.
type checks struct {
	check.Log
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
)

// errKept is what a statement gets that comes too late.
var errKept = errors.New("the handler has returned: its transaction is no longer its own")

// checkedTx is a guardedTx as a handler gets it while somebody looks. Statements pass one at a time, so that those of
// goroutines which outlive the handler are seen before they are sent.
type checkedTx struct {
	*guardedTx
	checks *checks
	msgs   []Message

	mu      sync.Mutex    // held while a statement runs
	over    bool          // the handler has returned; guarded by mu, like all below
	sent    int           // statements of this call
	before  int           // those of them that were sent before the message at hand
	single  bool          // the code for each message was looked at by itself
	lasting bool          // a temporary table was perhaps made or dropped, which no server rolls back
	writes  []check.Place // of statements that write, each once
}

// handle has a handler called with a transaction that is looked at. code is the handler's.
func (c *checks) handle(
	ctx context.Context, guard *guardedTx, code any, msgs []Message, call func(tx gorm.ConnPool) error,
) error {
	t := &checkedTx{guardedTx: guard, checks: c, msgs: msgs}
	err := t.run(call)
	if err == nil && t.sent == 0 && !t.single {
		t.nothing(ctx, code, msgs[0])
	}
	t.closeRows()
	if c.server && len(t.writes) > 0 && t.failed == nil && ctx.Err() == nil && t.lasts(ctx) {
		t.tellWhatLasts(ctx)
	}
	return err
}

func (t *checkedTx) run(call func(tx gorm.ConnPool) error) error {
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.over = true
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
			if err == nil && t.sent == t.before {
				t.nothing(ctx, code, *m)
			}
			t.single, t.before = true, t.sent
		}
	}
	return err
}

// nothing tells that the handler did nothing for a message.
func (t *checkedTx) nothing(ctx context.Context, code any, m Message) {
	at := check.Place{Line: cmp.Or(check.LineOf(code), t.checks.made)}
	if t.checks.First(whatNothing, at) {
		t.checks.Warn(ctx, whatNothing, at, "write through the tx that the handler is given, not through a pool; return an "+
			"error where nothing could be done. If the message asks for nothing, this is as it should be",
			slog.Any("message", m.Identity))
	}
}

// enter is what comes before a statement. The caller holds mu.
func (t *checkedTx) enter(ctx context.Context, text string) (check.Place, error) {
	at := check.At(text)
	if !t.over {
		t.sent++
		return at, nil
	}
	if t.checks.First(whatKept, at) {
		t.checks.Warn(ctx, whatKept, at, "wait for the goroutines that use tx before the handler returns, and keep tx "+
			"nowhere", slog.Any("message", t.msgs[0].Identity))
	}
	return at, fmt.Errorf("%s: %w", cmp.Or(at.Line, at.Statement), errKept)
}

// leave is what comes behind a statement. The caller holds mu.
func (t *checkedTx) leave(at check.Place, text string, err error) {
	if err != nil {
		return
	}
	t.lasting = t.lasting || t.last == sqltext.Lasting
	if (t.last == sqltext.Opaque || sqltext.Writes(text)) && !slices.Contains(t.writes, at) {
		t.writes = append(t.writes, at)
	}
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
	t.leave(at, query, err)
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
	t.leave(at, query, err)
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
	t.leave(at, query, row.Err())
	return row
}

const (
	checkSavepoint = "SAVEPOINT rollbackd_check"
	notRolledBack  = 1196 // the server's warning of a rollback that leaves something behind
)

// lasts asks the server whether the transaction has written what no rollback takes back. It warns of that behind a
// rollback to a savepoint, and so also behind one that had nothing to take back, whatever led the statement there: a
// name, a view, a trigger.
func (t *checkedTx) lasts(ctx context.Context) bool {
	for _, text := range []string{checkSavepoint, "ROLLBACK TO " + checkSavepoint} {
		if _, err := t.tx.ExecContext(mysqldb.AfterRows(ctx), text); err != nil {
			return false // the engine's next statement meets it too
		}
	}
	codes, err := mysqldb.List(ctx, t.tx, func(rows *sql.Rows) (code int, err error) {
		var level, says string
		err = rows.Scan(&level, &code, &says)
		return code, err
	}, "SHOW WARNINGS")
	return err == nil && slices.Contains(codes, notRolledBack)
}

// lastingTable is a table that is not rolled back.
type lastingTable struct{ schema, name, engine string }

// lastingTables are those that this account may see.
const lastingTables = "SELECT table_schema, table_name, engine FROM information_schema.tables " +
	"WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys', 'information_schema', " +
	"'performance_schema') AND engine NOT IN (SELECT engine FROM information_schema.engines WHERE transactions = 'YES')"

// tellWhatLasts tells which statements have written it, each once: those that name such a table, else the last one.
func (t *checkedTx) tellWhatLasts(ctx context.Context) {
	var fresh []check.Place
	for _, at := range t.writes {
		if t.checks.First(whatLasts, at) {
			fresh = append(fresh, at)
		}
	}
	if len(fresh) == 0 {
		return
	}
	tables, err := mysqldb.List(ctx, t.tx, func(rows *sql.Rows) (l lastingTable, err error) {
		err = rows.Scan(&l.schema, &l.name, &l.engine)
		return l, err
	}, lastingTables)
	if err != nil {
		tables = nil // then nobody knows its name
	}
	named := false
	for _, at := range t.writes {
		for _, l := range tables {
			if !sqltext.Names(at.Statement, l.name) {
				continue
			}
			if named = true; slices.Contains(fresh, at) {
				name := l.schema + "." + l.name
				t.warnOfWhatLasts(ctx, at, fmt.Sprintf("the table %s is %s: ALTER TABLE %s ENGINE = InnoDB", name, l.engine, name))
			}
		}
	}
	if !named && !t.lasting {
		t.warnOfWhatLasts(ctx, fresh[len(fresh)-1], "this statement, or one before it in its transaction, writes by a view, "+
			"a trigger or a procedure to a table whose engine is not InnoDB: give it that one")
	}
}

func (t *checkedTx) warnOfWhatLasts(ctx context.Context, at check.Place, do string) {
	t.checks.Warn(ctx, whatLasts, at, do, slog.Any("message", t.msgs[0].Identity))
}
