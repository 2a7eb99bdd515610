package sql

import (
	"context"
	stdsql "database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Refusal is what the database has against a file: an [*Error] for each statement that cannot run.
type Refusal struct{ Errors []*Error }

// Error has a line for each.
func (r *Refusal) Error() string {
	lines := make([]string, len(r.Errors))
	for i, e := range r.Errors {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Check asks the database whether the statements can run, and changes nothing. Each is prepared, so that a misspelt
// column is found, and every table that a statement names must have a transactional engine: what MyISAM has written,
// nobody can undo. What writes may name none of the tables that [Load] was given, and write no generated column. Views
// and triggers are looked into, as far as the user may see them; procedures and functions are not. It also learns
// whether runs of a statement may be joined. The error is a [*Refusal], or says that the database could not be asked.
func (f *File) Check(ctx context.Context, pool *stdsql.DB) error {
	conn, err := pool.Conn(ctx)
	if err != nil {
		return fmt.Errorf("check %s: %w", f.Name, err)
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	var refused []*Error
	for _, s := range f.all {
		switch err := s.prepare(ctx, conn); {
		case err == nil:
		// waiting cannot help: the server has read the statement and refuses it
		case errors.Is(err, errPlaces), mysqldb.Misworded(err), mysqldb.Refuses(err):
			refused = append(refused, &Error{f.Name, s.At, err})
		default:
			return fmt.Errorf("check %s:%v: %w", f.Name, s.At, err)
		}
	}
	for _, look := range []func(context.Context, mysqldb.Queryer) ([]*Error, error){f.checkTables, f.checkGenerated} {
		if len(refused) > 0 {
			break
		}
		if refused, err = look(ctx, conn); err != nil {
			return fmt.Errorf("check the tables of %s: %w", f.Name, err)
		}
	}
	if len(refused) > 0 {
		return &Refusal{refused}
	}
	p, err := f.learn(ctx, conn)
	if err != nil {
		return fmt.Errorf("look how %s may be run for many messages: %w", f.Name, err)
	}
	f.plan.Store(p)
	return nil
}

// errPlaces says that the server found another number of parameters than we did. Then one of the two has read a string
// or a comment differently, and the statement is not what it looks like.
var errPlaces = errors.New("the server reads this statement differently: it sees another number of parameters")

// prepare has the server read the statement.
func (s *Statement) prepare(ctx context.Context, conn *stdsql.Conn) error {
	var w statement
	w.parts(s.parts, func(param) any { return "" })
	return conn.Raw(func(raw any) error {
		preparer, ok := raw.(driver.ConnPrepareContext)
		if !ok {
			return fmt.Errorf("the driver's connection (%T) cannot prepare", raw)
		}
		st, err := preparer.PrepareContext(ctx, w.String())
		if err != nil {
			return err
		}
		if n := st.NumInput(); n != len(w.args) {
			err = fmt.Errorf("%w (%d, not %d)", errPlaces, n, len(w.args))
		}
		return errors.Join(err, st.Close())
	})
}

// rowsOf are the rows that a query finds, as text; NULL is "".
func rowsOf(ctx context.Context, on mysqldb.Queryer, query string, args ...any) ([][]string, error) {
	return mysqldb.List(ctx, on, func(rows *stdsql.Rows) ([]string, error) {
		columns, err := rows.Columns()
		row, into := make([]string, len(columns)), make([]any, len(columns))
		for i := range row {
			into[i] = mysqldb.OrZero(&row[i])
		}
		return row, errors.Join(err, rows.Scan(into...))
	}, query, args...)
}

// namesIn are the names in a statement, as a list of arguments.
func namesIn(tokens []token) (in string, names []any) {
	for _, t := range tokens {
		if t.isName() {
			names = append(names, t.text)
		}
	}
	return "(NULL" + strings.Repeat(", ?", len(names)) + ")", names
}

// isName reports whether the token can be the name of a table. The server's own tables know three bytes a character.
func (t token) isName() bool {
	return (t.kind == kindWord || t.kind == kindName) && t.text != "" &&
		!strings.ContainsFunc(t.text, func(r rune) bool { return r > 0xffff })
}

// Narrow lists the columns named in a statement, of a table named in it, that cannot hold every text: a message with an
// emoji, or any other character that they lack, fails where it meets one. An INSERT that names no columns is not
// looked into.
func (f *File) Narrow(ctx context.Context, pool *stdsql.DB) (columns []string, err error) {
	for _, s := range f.all {
		in, names := namesIn(s.tokens)
		rows, err := rowsOf(ctx, pool, "SELECT CONCAT(table_name, '.', column_name, ' is ', character_set_name) FROM "+
			"information_schema.columns WHERE table_schema = DATABASE() AND character_set_name NOT IN ('utf8mb4', 'utf16', "+
			"'utf16le', 'utf32', 'gb18030') AND table_name IN "+in+" AND column_name IN "+in, slices.Concat(names, names)...)
		if err != nil {
			return nil, err
		}
		columns = append(columns, slices.Concat(rows...)...)
	}
	slices.Sort(columns)
	return slices.Compact(columns), nil
}

// checkTables finds the tables that are not transactional. A name counts wherever it stands, because the file is not
// parsed; so a column that has the name of such a table is refused too, and the text says so.
func (f *File) checkTables(ctx context.Context, on mysqldb.Queryer) (refused []*Error, err error) {
	server, err := rowsOf(ctx, on, "SELECT DATABASE(), @@lower_case_table_names")
	if err != nil {
		return nil, err
	}
	look := tableLook{ctx: ctx, on: on, own: server[0][0], folded: server[0][1] != "0", seen: map[named]string{}}
	for _, s := range f.all {
		look.ours = nil
		if s.writes() {
			look.ours = f.ours
		}
		why, err := look.at(look.own, s.besidesOutbox())
		if err != nil {
			return nil, err
		}
		if why != "" {
			refused = append(refused, &Error{f.Name, s.At, errors.New(why)})
		}
	}
	f.triggers.Store(look.fires)
	return refused, nil
}

// named is a table or a view that statements name.
type named struct {
	schema, name string
	written      bool // a statement that writes does
}

// tableLook looks at what statements name, and at what is behind that.
type tableLook struct {
	ctx    context.Context
	on     mysqldb.Queryer
	folded bool             // the server does not tell large letters in names from small ones
	seen   map[named]string // why it is refused, or empty
	own    string           // the schema of the log
	fires  bool             // one of the tables has a trigger
	ours   []string         // tables in it that the statement may not name; nil for one that does not write
}

const tablesQuery = `SELECT t.table_schema, t.table_name, t.table_type, COALESCE(e.transactions, ''), t.engine
FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine WHERE t.table_name IN `

// at says what is wrong with a table that is named by tokens of a statement in this schema, or in one that is named
// too: a word before a dot may be a schema, or an alias, or a table.
func (l *tableLook) at(schema string, tokens []token) (why string, err error) {
	in, names := namesIn(tokens)
	if len(names) == 0 {
		return "", nil
	}
	rows, err := rowsOf(l.ctx, l.on, tablesQuery+in+" AND (t.table_schema = ? OR t.table_schema IN "+in+")",
		slices.Concat(names, []any{schema}, names)...)
	if err != nil {
		return "", err
	}
	for _, row := range rows {
		n := named{row[0], row[1], l.ours != nil}
		if !l.folded && !slices.Contains(names, any(n.name)) {
			continue
		}
		why, seen := l.seen[n]
		if !seen {
			l.seen[n] = "" // a view cannot name itself, but a trigger's table can
			if why, err = l.table(n, row[2], row[3], row[4]); err != nil {
				return "", err
			}
			l.seen[n] = why
		}
		if why != "" {
			return why, nil
		}
	}
	return "", nil
}

func (l *tableLook) table(n named, kind, transactions, engine string) (why string, err error) {
	switch {
	case n.schema == l.own && containsFold(l.ours, n.name) && strings.EqualFold(n.name, outboxTable):
		return fmt.Sprintf("the table %s is rollbackd's own, and a statement may do no more than INSERT INTO %s (…), with "+
			"columns of %s", outboxTable, outboxTable, strings.Join(outboxColumns, ", ")), nil
	case n.schema == l.own && containsFold(l.ours, n.name):
		return fmt.Sprintf("the table %s is rollbackd's own, and says which messages have had their effect: a statement "+
			"that writes may not name it (if a column is meant that has this name too: it needs another)", n.name), nil
	case kind == "VIEW":
		return l.behind("the view "+n.name, viewQuery, n)
	case kind == "SYSTEM VIEW":
		return "", nil
	case transactions != "YES":
		return fmt.Sprintf("the table %s has the engine %s, which cannot roll back: ALTER TABLE … ENGINE=InnoDB (if a "+
			"column is meant that has this name too: one of the two needs another)", n.name, engine), nil
	}
	return l.behind("a trigger of "+n.name, triggerQuery, n)
}

const (
	viewQuery    = "SELECT view_definition FROM information_schema.views WHERE table_schema = ? AND table_name = ?"
	triggerQuery = "SELECT action_statement FROM information_schema.triggers WHERE event_object_schema = ? AND " +
		"event_object_table = ?"
)

// behind looks at the tables in the text of a view, or of triggers.
func (l *tableLook) behind(what, query string, n named) (string, error) {
	texts, err := rowsOf(l.ctx, l.on, query, n.schema, n.name)
	l.fires = l.fires || query == triggerQuery && len(texts) > 0
	for _, text := range slices.Concat(texts...) {
		if why, err := l.at(n.schema, tokensOf(text)); why != "" || err != nil {
			return what + ": " + why, err
		}
	}
	return "", err
}

// tokensOf splits a text of the server's; what our files may not have is left out.
func tokensOf(text string) (tokens []token) {
	for l := newLexer(text); ; {
		t, err := l.next()
		switch {
		case err != nil:
			l.move(1)
		case t.kind == kindEnd:
			return tokens
		default:
			tokens = append(tokens, t)
		}
	}
}

// Server is the database against which a file is checked.
type Server struct {
	DSN string
	mysqldb.Options
	Logger *slog.Logger
	// Waiting, if set, is told why the check cannot be made yet, each time.
	Waiting func(error)
}

const (
	checkTimeout = 30 * time.Second
	longestPause = 5 * time.Second
)

// Await is Check, but waits for a database that is away; then it returns no sooner than ctx ends.
func (f *File) Await(ctx context.Context, s Server) error {
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = longestPause
	for {
		err := f.checkOn(ctx, s)
		if _, refused := errors.AsType[*Refusal](err); err == nil || refused {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if s.Waiting != nil {
			s.Waiting(err)
		}
		s.Logger.WarnContext(ctx, "the statements of the SQL file cannot be checked yet, nothing is consumed", "err", err)
		if err := wait.For(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

func (f *File) checkOn(ctx context.Context, s Server) error {
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("no answer within %v", checkTimeout))
	defer cancel()
	pool, err := s.open(mysqldb.Connector)
	if err != nil {
		return err
	}
	defer func() { _ = pool.Close() }() // nothing is left in it
	return f.Check(ctx, pool)
}

func (s Server) open(
	connect func(string, mysqldb.Options) (driver.Connector, []string, error),
) (*stdsql.DB, error) {
	connector, _, err := connect(s.DSN, s.Options)
	if err != nil {
		return nil, err
	}
	return stdsql.OpenDB(connector), nil
}
