package dedup

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// fate is what becomes of one COMMIT.
type fate string

// A COMMIT is answered; or its answer is lost and it took place, or did not, or stays undecided in the server with all
// its locks until somebody decides it.
const (
	answered   fate = "answered"
	lostAfter  fate = "answer lost, committed"
	lostBefore fate = "answer lost, not committed"
	undecided  fate = "answer lost, decided later"
)

var errAnswerLost = errors.New("the answer to COMMIT was lost")

// lossyWire connects to a real server and loses the answer to a COMMIT when told to. One goroutine uses it.
type lossyWire struct {
	driver.Connector
	next fate    // of the next COMMIT
	left *zombie // the transaction that the last undecided COMMIT left open
}

// zombie is a transaction that lives on in the server after its client lost the connection.
type zombie struct {
	conn *lossyConn
	tx   driver.Tx
}

// decide ends a zombie the way the server would.
func (z *zombie) decide(commit bool) error {
	end := z.tx.Rollback
	if commit {
		end = z.tx.Commit
	}
	return errors.Join(end(), z.conn.mysqlConn.Close())
}

// mysqlConn is all that database/sql uses of the driver's connection.
type mysqlConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

type lossyConn struct {
	mysqlConn
	wire   *lossyWire
	undead bool // its transaction outlives the pool's connection
}

func (w *lossyWire) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lossyConn{mysqlConn: conn.(mysqlConn), wire: w}, nil
}

func (c *lossyConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.mysqlConn.BeginTx(ctx, o)
	return &lossyTx{tx, c}, err
}

// Close leaves an undecided transaction to the server.
func (c *lossyConn) Close() error {
	if c.undead {
		return nil
	}
	return c.mysqlConn.Close()
}

type lossyTx struct {
	driver.Tx
	conn *lossyConn
}

func (tx *lossyTx) Commit() error {
	w := tx.conn.wire
	fate := w.next
	w.next = answered
	switch fate {
	case lostAfter:
		return errors.Join(tx.Tx.Commit(), errAnswerLost)
	case lostBefore:
		return errors.Join(tx.Rollback(), errAnswerLost)
	case undecided:
		tx.conn.undead = true
		w.left = &zombie{tx.conn, tx.Tx}
		return driver.ErrBadConn // database/sql gives the connection up
	}
	return tx.Tx.Commit()
}

// openLossy opens a pool as Open does, over a wire that may lose answers.
func openLossy(t *testing.T, dsn string) (*lossyWire, *sql.DB, *gorm.DB) {
	t.Helper()
	inner := require.First(mysqldb.Connector(dsn, mysqldb.Options{LockWait: time.Second}))(t)
	wire := &lossyWire{Connector: inner, next: answered}
	pool := sql.OpenDB(wire)
	pool.SetMaxIdleConns(20)
	t.Cleanup(func() { pool.Close() })
	db := require.Get(gorm.Open(gormmysql.New(gormmysql.Config{Conn: pool, SkipInitializeWithVersion: true}),
		&gorm.Config{SkipDefaultTransaction: true, DisableAutomaticPing: true, Logger: logger.Discard}))(t)
	return wire, pool, db
}
