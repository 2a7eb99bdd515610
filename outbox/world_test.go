package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a fresh schema with the outbox in it.
type world struct {
	*testing.T
	dsn string
	g   *gorm.DB
	db  *sql.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, dsn: stack.MySQL(t)}
	w.g = w.open(mysqldb.Options{})
	w.db = require.Get(w.g.DB())(w)
	stack.Tables(t, w.dsn, "outbox", func() { w.must(outbox.Migrate(t.Context(), w.g)) })
	return w
}

func (w *world) open(o mysqldb.Options) *gorm.DB {
	w.Helper()
	g := require.First(mysqldb.Open(w.Context(), w.dsn, o))(w)
	pool := require.Get(g.DB())(w)
	w.Cleanup(func() { _ = pool.Close() })
	return g
}

func (w *world) must(err error) {
	w.Helper()
	require.OK(w, err)
}

// tx does something in a transaction, committed when it returns nil.
func (w *world) tx(do func(tx *sql.Tx) error) error {
	tx, err := w.db.BeginTx(w.Context(), nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (w *world) put(msgs ...outbox.Message) error {
	return w.tx(func(tx *sql.Tx) error { return outbox.Put(w.Context(), tx, msgs...) })
}

func (w *world) cancel(tag, key string) (inTime bool) {
	w.Helper()
	w.must(w.tx(func(tx *sql.Tx) (err error) {
		inTime, err = outbox.Cancel(w.Context(), tx, tag, key)
		return err
	}))
	return inTime
}

// rows are all waiting messages, as tag/key=body.
func (w *world) rows() (all []string) {
	w.Helper()
	rows := require.Get(mysqldb.List(context.WithoutCancel(w.Context()), w.db, func(rows *sql.Rows) (s string, err error) {
		return s, rows.Scan(&s)
	}, "SELECT CONCAT(msg_tag, '/', msg_key, '=', body) FROM rollbackd_outbox ORDER BY msg_tag, msg_key"))(w)
	return rows
}
