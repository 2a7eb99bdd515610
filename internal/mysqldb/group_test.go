package mysqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// What holds in MySQL's group replication, whose start takes a while: the cases share it.
func TestGroupReplication(t *testing.T) {
	cluster := stack.OwnReplicated(t, stack.Group)
	t.Run("a primary that is cut off shows nobody what was", func(t *testing.T) { cutOffPrimary(t, cluster) })
	t.Run("a node that has left is a server", func(t *testing.T) { memberHasLeft(t, cluster) })
}

// Given a primary that is cut off from its group, which has another one, when it is asked for what that has committed
// since, then it does not answer with what was; not either when it is back and has not heard yet that it was replaced.
func cutOffPrimary(t *testing.T, cluster *stack.Stack) {
	w := newWorldOn(t, cluster.MySQL.Database(t))
	old := cluster.Databases[0]
	const query = "SELECT n FROM goods WHERE id = 1"
	asItIs, ours := plain(t, w.dsn, old), poolOf(t, open(t, on(t, w.dsn, old)))
	read := func() (n int, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err = ours.QueryRowContext(ctx, query).Scan(&n)
		return n, err
	}
	if n, err := read(); err != nil || n != 0 {
		t.Fatalf("n = %d, %v at first, want 0", n, err)
	}
	assert.OK(t, cluster.CutOff(t.Context(), old))
	poll.Until(t, "another node being written to", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := w.pool.ExecContext(ctx, "UPDATE goods SET n = 7")
		return err == nil
	})
	n := -1
	assert.OK(t, asItIs.QueryRow(query).Scan(&n))
	require.Is(t, n, 0, "n on the old primary, which is not cut off")
	n, err := read()
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
	asItIs, ours := plain(t, w.dsn, node), poolOf(t, open(t, on(t, w.dsn, node)))
	arrived(t, asItIs)
	require.Get(asItIs.Exec("STOP GROUP_REPLICATION"))(t)
	later := poolOf(t, open(t, on(t, w.dsn, node)))
	for what, pool := range map[string]*sql.DB{"a former session": ours, "a new one": later} {
		n := -1
		assert.OK(t, pool.QueryRow("SELECT n FROM goods").Scan(&n))
		assert.Is(t, n, 0, "%s reads", what)
	}
	assert.OK(t, cluster.Join(t.Context(), 2))
}
