package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// What holds on a cluster, whose start takes a while: the cases share it.
func TestGalera(t *testing.T) {
	cluster := stack.OwnGalera(t)
	t.Run("a node that takes no statements is left", func(t *testing.T) { nodeIsLeft(t, cluster.Databases[0]) })
	t.Run("a conflict at COMMIT is contention", func(t *testing.T) { conflictAtCommit(t, cluster) })
	t.Run("a node that lags does not show what was", func(t *testing.T) { laggingNodeWaits(t, cluster) })
}

// plain opens a pool without any of our settings, on a node of the cluster that has the database of dsn.
func plain(t *testing.T, dsn string, node *stack.Server) *sql.DB {
	t.Helper()
	config := require.Get(mysql.ParseDSN(dsn))(t)
	config.Addr, config.Logger = node.Addr(), &mysql.NopLogger{}
	connector := require.Get(mysql.NewConnector(config))(t)
	pool := sql.OpenDB(connector)
	t.Cleanup(func() { _ = pool.Close() })
	return pool
}

// on is dsn with a node's address.
func on(t *testing.T, dsn string, node *stack.Server) string {
	t.Helper()
	config := require.Get(mysql.ParseDSN(dsn))(t)
	config.Addr = node.Addr()
	return config.FormatDSN()
}

// arrived waits until another node of the cluster has the database.
func arrived(t *testing.T, pool *sql.DB) {
	t.Helper()
	poll.Until(t, "the row is on the other node", func() bool {
		n := -1
		return pool.QueryRow("SELECT n FROM goods WHERE id = 1").Scan(&n) == nil && n == 0
	})
}

// Given idle connections to a node, and one with a transaction, when the node takes no statements any more, then each
// statement fails as one on a server that is away, no connection stays in the pool, and what was not committed is not
// committed later.
func nodeIsLeft(t *testing.T, node *stack.Server) {
	w := newWorldOn(t, node.Database(t))
	admin := plain(t, w.dsn, node)
	refuse := func(what string) {
		require.Get(admin.ExecContext(context.WithoutCancel(t.Context()), "SET GLOBAL wsrep_reject_queries = "+what))(t)
	}
	tx := require.Get(w.pool.BeginTx(t.Context(), nil))(t)
	require.Get(tx.Exec("UPDATE goods SET n = 1"))(t)
	var held []*sql.Conn
	for range 6 {
		held = append(held, require.Get(w.pool.Conn(t.Context()))(t))
	}
	for _, conn := range held {
		assert.OK(t, conn.Close())
	}

	refuse("ALL")
	t.Cleanup(func() { refuse("NONE") })
	err := tx.Commit()
	if Classify(err) != FaultUnavailable || !errors.Is(err, driver.ErrBadConn) {
		t.Errorf("COMMIT = %v (%v), want the server to be away and the connection to be left", err, Classify(err))
	}
	for range len(held) {
		if _, err = w.pool.Exec("UPDATE goods SET n = 2"); err == nil || Classify(err) != FaultUnavailable {
			t.Errorf("a statement = %v (%v), want the server to be away", err, Classify(err))
		}
	}
	assert.Is(t, w.pool.Stats().OpenConnections, 0, "connections to the node are still in the pool")

	refuse("NONE")
	n := -1
	assert.OK(t, w.pool.QueryRow("SELECT n FROM goods WHERE id = 1").Scan(&n))
	assert.Is(t, n, 0, "n")
}

// Given a transaction on one node, when another one that writes the same row is committed on another node, then the
// first one's COMMIT says that they met, and the connection is of use.
func conflictAtCommit(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.Databases[0].Database(t))
	other := poolOf(t, open(t, on(t, w.dsn, cluster.Databases[1])))
	arrived(t, other)
	tx := require.Get(w.pool.BeginTx(t.Context(), nil))(t)
	require.Get(tx.Exec("UPDATE goods SET n = 1 WHERE id = 1"))(t)
	require.Get(other.Exec("UPDATE goods SET n = 2 WHERE id = 1"))(t)

	err := tx.Commit()
	assert.Is(t, Classify(err), FaultContention, "COMMIT = %v", err)
	assert.Is(t, w.pool.Stats().OpenConnections, 1, "connections are open")
	var n int
	assert.OK(t, w.pool.QueryRow("SELECT n FROM goods WHERE id = 1").Scan(&n))
	assert.Is(t, n, 2, "n")
}

// Given a node that does not apply what the cluster commits, when it is asked, then it answers when it has, and not
// with what was.
func laggingNodeWaits(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.Databases[0].Database(t))
	node := cluster.Databases[2]
	lagging := poolOf(t, open(t, on(t, w.dsn, node)))
	arrived(t, lagging)
	const query = "SELECT n FROM goods WHERE id = 1"
	asItIs := plain(t, w.dsn, node)
	locker := require.Get(asItIs.Conn(t.Context()))(t)
	defer locker.Close()
	require.Get(locker.ExecContext(t.Context(), "FLUSH TABLES WITH READ LOCK"))(t)
	unlocked := false
	unlock := func() {
		if !unlocked {
			require.Get(locker.ExecContext(context.WithoutCancel(t.Context()), "UNLOCK TABLES"))(t)
			unlocked = true
		}
	}
	defer unlock()
	w.exec("UPDATE goods SET n = 7 WHERE id = 1")
	n := -1
	assert.OK(t, asItIs.QueryRow(query).Scan(&n))
	require.Is(t, n, 0, "n on the node, which does not lag")

	type answer struct {
		n   int
		err error
	}
	answers := make(chan answer, 1)
	go func() { // joined below
		var a answer
		a.err = lagging.QueryRow(query).Scan(&a.n)
		answers <- a
	}()
	poll.Until(t, "the node has the question", func() bool {
		var asked int
		err := asItIs.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT n FROM goods%'").
			Scan(&asked)
		return err == nil && asked > 0 || len(answers) > 0
	})
	if len(answers) > 0 {
		t.Errorf("it answers %+v before it has what was committed", <-answers)
		return
	}
	unlock()
	a := <-answers
	assert.That(t, a.err == nil && a.n == 7, "it answers %d, %v, want 7", a.n, a.err)
}
