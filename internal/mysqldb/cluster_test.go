package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// What holds on a cluster, whose start takes a while: the cases share it.
func TestGalera(t *testing.T) {
	cluster := stack.OwnCluster(t, stack.Galera)
	t.Run("a node that takes no statements is left", func(t *testing.T) { nodeIsLeft(t, cluster.Databases[0]) })
	t.Run("a conflict at COMMIT is contention", func(t *testing.T) { conflictAtCommit(t, cluster) })
	t.Run("a node that lags does not show what was", func(t *testing.T) { laggingNodeWaits(t, cluster) })
}

// plain opens a pool without any of our settings, on a node of the cluster that has the database of dsn.
func plain(t *testing.T, dsn string, node *stack.Server) *sql.DB {
	t.Helper()
	pool := stack.OpenMySQL(require.Get(mysql.ParseDSN(on(t, dsn, node)))(t))
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
	refuse := func(what string) { stack.Exec(t, admin, "SET GLOBAL wsrep_reject_queries = "+what) }
	tx := require.Get(w.pool.BeginTx(t.Context(), nil))(t)
	stack.Exec(t, tx, "UPDATE goods SET n = 1")
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
	assert.That(t, Classify(err) == FaultUnavailable && errors.Is(err, driver.ErrBadConn),
		"COMMIT = %v (%v), want the server to be away and the connection to be left", err, Classify(err))
	for range len(held) {
		if _, err = w.pool.Exec("UPDATE goods SET n = 2"); err == nil || Classify(err) != FaultUnavailable {
			t.Errorf("a statement = %v (%v), want the server to be away", err, Classify(err))
		}
	}
	assert.Is(t, w.pool.Stats().OpenConnections, 0, "connections to the node are still in the pool")

	refuse("NONE")
	assert.Is(t, stack.Number(t, w.pool, "SELECT n FROM goods WHERE id = 1"), 0, "n")
}

// Given a transaction on one node, when another one that writes the same row is committed on another node, then the
// first one's COMMIT says that they met, and the connection is of use.
func conflictAtCommit(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.Databases[0].Database(t))
	other := openPool(t, on(t, w.dsn, cluster.Databases[1]), Options{})
	arrived(t, other)
	tx := require.Get(w.pool.BeginTx(t.Context(), nil))(t)
	stack.Exec(t, tx, "UPDATE goods SET n = 1 WHERE id = 1")
	stack.Exec(t, other, "UPDATE goods SET n = 2 WHERE id = 1")

	err := tx.Commit()
	assert.Is(t, Classify(err), FaultContention, "COMMIT = %v", err)
	assert.Is(t, w.pool.Stats().OpenConnections, 1, "connections are open")
	assert.Is(t, stack.Number(t, w.pool, "SELECT n FROM goods WHERE id = 1"), 2, "n")
}

// Given a node that does not apply what the cluster commits, when it is asked, then it answers when it has, and not
// with what was.
func laggingNodeWaits(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.Databases[0].Database(t))
	node := cluster.Databases[2]
	lagging := openPool(t, on(t, w.dsn, node), Options{})
	arrived(t, lagging)
	const query = "SELECT n FROM goods WHERE id = 1"
	asItIs := plain(t, w.dsn, node)
	locker := require.Get(asItIs.Conn(t.Context()))(t)
	defer locker.Close()
	stack.Exec(t, locker, "FLUSH TABLES WITH READ LOCK")
	unlock := sync.OnceFunc(func() { stack.Exec(t, locker, "UNLOCK TABLES") })
	defer unlock()
	w.exec("UPDATE goods SET n = 7 WHERE id = 1")
	require.Is(t, stack.Number(t, asItIs, query), 0, "n on the node, which does not lag")

	answers := make(chan string, 1)
	go func() { // joined below
		n := -1
		err := lagging.QueryRow(query).Scan(&n)
		answers <- fmt.Sprint(n, err)
	}()
	poll.Until(t, "the node has the question", func() bool {
		return stack.Number(t, asItIs, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE "+
			"'SELECT n FROM goods%'") > 0 || len(answers) > 0
	})
	if len(answers) > 0 {
		t.Errorf("it answers %s before it has what was committed", <-answers)
		return
	}
	unlock()
	assert.Is(t, <-answers, "7 <nil>", "it answers")
}

// What holds in MySQL's group replication, whose start takes a while: the cases share it.
func TestGroupReplication(t *testing.T) {
	cluster := stack.OwnCluster(t, stack.Group)
	t.Run("a primary that is cut off shows nobody what was", func(t *testing.T) { cutOffPrimary(t, cluster) })
	t.Run("a node that has left is a server", func(t *testing.T) { memberHasLeft(t, cluster) })
}

// Given a primary that is cut off from its group, which has another one, when it is asked for what that has committed
// since, then it does not answer with what was; not either when it is back and has not heard yet that it was replaced.
func cutOffPrimary(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.MySQL.Database(t))
	old := cluster.Databases[0]
	const query = "SELECT n FROM goods WHERE id = 1"
	asItIs, ours := plain(t, w.dsn, old), openPool(t, on(t, w.dsn, old), Options{})
	read := func() (n int, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err = ours.QueryRowContext(ctx, query).Scan(&n)
		return n, err
	}
	n, err := read()
	require.That(t, err == nil && n == 0, "n = %d, %v at first, want 0", n, err)
	assert.OK(t, cluster.CutOff(t.Context(), old))
	poll.Until(t, "another node being written to", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := w.pool.ExecContext(ctx, "UPDATE goods SET n = 7")
		return err == nil
	})
	require.Is(t, stack.Number(t, asItIs, query), 0, "n on the old primary, which is not cut off")
	n, err = read()
	assert.That(t, err != nil, "the old primary answers %d", n)

	assert.OK(t, cluster.Mend(t.Context(), old))
	left := 0
	poll.Until(t, "the old primary having what was committed", func() bool {
		n, err := read()
		switch {
		case err == nil && n != 7:
			t.Errorf("the old primary answers %d", n)
		case notReady(err):
			left++
			if open := ours.Stats().OpenConnections; !errors.Is(err, driver.ErrBadConn) || open != 0 {
				t.Errorf("it says %v (%v), and %d connections are in the pool, want none", err, Classify(err), open)
			}
		}
		return err == nil
	})
	assert.That(t, left != 0, "it never said that it is no member: this has shown nothing")
}

// Given a node that has left its group, as its administrator said, when it is asked, then it is a server like any
// other.
func memberHasLeft(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.MySQL.Database(t))
	node := cluster.Databases[2]
	asItIs, ours := plain(t, w.dsn, node), openPool(t, on(t, w.dsn, node), Options{})
	arrived(t, asItIs)
	stack.Exec(t, asItIs, "STOP GROUP_REPLICATION")
	later := openPool(t, on(t, w.dsn, node), Options{})
	for what, pool := range map[string]*sql.DB{"a former session": ours, "a new one": later} {
		assert.Is(t, stack.Number(t, pool, "SELECT n FROM goods"), 0, "%s reads", what)
	}
	assert.OK(t, cluster.Join(t.Context(), 2))
}

// Given a source that is cut off from its replicas, when a statement commits, then it waits, and nobody sees what it
// wrote: what is looked up is what a failover keeps. Who kills the statement, or its connection, does not change that;
// when a replica answers, it is committed.
func TestSemiSync(t *testing.T) {
	cluster := stack.OwnCluster(t, stack.SemiSync)
	w := newWorldOn(t, cluster.MySQL.Database(t))
	source := cluster.Databases[0]
	asItIs := plain(t, w.dsn, source)
	n := func() int { return stack.Number(t, asItIs, "SELECT n FROM goods") }
	for i, kill := range []string{"KILL QUERY %d", "KILL %d"} {
		assert.OK(t, cluster.CutOff(t.Context(), source))
		conn := require.Get(w.pool.Conn(t.Context()))(t)
		id := stack.Number(t, conn, "SELECT CONNECTION_ID()")
		done := make(chan struct{})
		go func() { // joined below
			defer close(done)
			// killed, it fails; what matters is what is seen
			_, _ = conn.ExecContext(context.WithoutCancel(t.Context()), "UPDATE goods SET n = n + 1")
		}()
		waits := func(what string) bool {
			var command, state string
			err := asItIs.QueryRow("SELECT COMMAND, COALESCE(STATE, '') FROM information_schema.PROCESSLIST WHERE ID = ?", id).
				Scan(&command, &state)
			return err == nil && state == "Waiting for semi-sync ACK from replica" && (what == "" || command == what)
		}
		poll.Until(t, "the statement waiting for a replica", func() bool { return waits("") })
		stack.Exec(t, asItIs, fmt.Sprintf(kill, id))
		if kill == "KILL %d" {
			poll.Until(t, "the connection being killed and waiting", func() bool { return waits("Killed") })
		}
		if got := n(); got != i || !waits("") {
			t.Errorf("%s: n = %d while no replica has it, want %d and the statement waiting", kill, got, i)
		}
		assert.OK(t, cluster.Mend(t.Context(), source))
		<-done
		poll.Until(t, "what was written being seen", func() bool { return n() == i+1 })
		_ = conn.Close() // it was killed
	}
}
