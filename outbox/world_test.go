package outbox_test

import (
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
	stack.Tables(t, w.dsn, "outbox", func() { require.OK(w, outbox.Migrate(t.Context(), w.g)) })
	return w
}

func (w *world) open(o mysqldb.Options) *gorm.DB {
	w.Helper()
	g := require.First(mysqldb.Open(w.Context(), w.dsn, o))(w)
	pool := require.Get(g.DB())(w)
	w.Cleanup(func() { _ = pool.Close() })
	return g
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
	require.OK(w, w.tx(func(tx *sql.Tx) (err error) {
		inTime, err = outbox.Cancel(w.Context(), tx, tag, key)
		return err
	}))
	return inTime
}

func message(key, body string) outbox.Message {
	return outbox.Message{Tag: "t", Key: key, Body: []byte(body)}
}

// rows are all waiting messages, as tag/key=body.
func (w *world) rows() (all []string) {
	w.Helper()
	for _, r := range stack.RowsOf(w, w.db, "SELECT msg_tag, msg_key, body FROM rollbackd_outbox ORDER BY 1, 2") {
		all = append(all, r["msg_tag"]+"/"+r["msg_key"]+"="+r["body"])
	}
	return all
}
