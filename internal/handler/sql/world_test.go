package sql

import (
	"context"
	stdsql "database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a database of the test's own.
type world struct {
	t    testing.TB
	db   *gorm.DB
	pool *stdsql.DB
}

func newWorld(t testing.TB, tables string) *world {
	t.Helper()
	w := &world{t: t, db: require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)}
	w.pool = require.Get(w.db.DB())(t)
	t.Cleanup(func() { w.pool.Close() })
	for _, text := range strings.Split(tables, ";") {
		if strings.TrimSpace(text) != "" {
			w.exec(text)
		}
	}
	return w
}

func (w *world) exec(text string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.pool, text, args...)
}

// show is what a query finds: a line for each row, NULL for what is NULL.
func (w *world) show(query string) string {
	w.t.Helper()
	lines, err := mysqldb.List(w.t.Context(), w.pool, func(rows *stdsql.Rows) (string, error) {
		columns, err := rows.Columns()
		cells, into := make([]*string, len(columns)), make([]any, len(columns))
		for i := range cells {
			into[i] = &cells[i]
		}
		err = errors.Join(err, rows.Scan(into...))
		line := make([]string, len(columns))
		for i, c := range cells {
			if line[i] = "NULL"; c != nil {
				line[i] = *c
			}
		}
		return strings.Join(line, " "), err
	}, query)
	require.That(w.t, err == nil, "%s: %v", query, err)
	return strings.Join(lines, "\n")
}

func (w *world) want(what, query, want string) {
	w.t.Helper()
	assert.Is(w.t, w.show(query), want, "%s", what)
}

// parse parses a file that must be good, and checks it against the database.
func (w *world) parse(text string) *File {
	w.t.Helper()
	f := require.Get(Parse("handler.sql", text))(w.t)
	require.OK(w.t, f.Check(w.t.Context(), w.pool))
	return f
}

// messages are messages with these bodies and the keys key-0, key-1, …
func messages(bodies ...string) []consumer.Message {
	all := make([]consumer.Message, len(bodies))
	for i, b := range bodies {
		all[i] = consumer.Message{
			Identity: dedup.Identity{Group: "group", Tag: "tag", Key: fmt.Sprintf("key-%d", i)}, Body: []byte(b),
		}
	}
	return all
}

// handle validates messages, hands them to the handler in one transaction, and commits it unless the handler fails. So
// does the engine, which also takes the blamed out and hands on the rest.
func (w *world) handle(h consumer.Handler, msgs ...consumer.Message) error {
	w.t.Helper()
	for i := range msgs {
		require.OK(w.t, h.(consumer.Validator).Validate(&msgs[i]))
	}
	ctx, cancel := context.WithCancel(w.t.Context()) // it ends with the transaction, as the engine's does
	defer cancel()
	tx := w.db.WithContext(ctx).Begin()
	if tx.Error != nil {
		return tx.Error // goroutines call this too
	}
	defer tx.Rollback()
	if err := h.Handle(ctx, tx, msgs); err != nil {
		return err
	}
	return tx.Commit().Error
}

// blamed are the errors of the blamed messages, by their index; none if nobody is blamed in particular.
func blamed(t testing.TB, err error) map[int]error {
	t.Helper()
	by, ok := errors.AsType[*consumer.BlameError](err)
	if !ok {
		t.Logf("nobody is blamed in particular: %v", err)
		return nil
	}
	errs := map[int]error{}
	for _, m := range by.Messages {
		errs[m.Index] = m.Err
	}
	return errs
}

// example reads a file of deploy/examples/sql.
func example(t testing.TB, name, file string) string {
	t.Helper()
	text := require.Get(os.ReadFile(filepath.Join("..", "..", "..", "deploy", "examples", "sql", name, file)))(t)
	return string(text)
}
