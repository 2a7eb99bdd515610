package mysqldb

import (
	"context"
	"fmt"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a source that is cut off from its replicas, when a statement commits, then it waits, and nobody sees what it
// wrote: what is looked up is what a failover keeps. Who kills the statement, or its connection, does not change that;
// when a replica answers, it is committed.
func TestSemiSync(t *testing.T) {
	cluster := stack.OwnReplicated(t, stack.SemiSync)
	w := newWorldOn(t, cluster.MySQL.Database(t))
	source := cluster.Databases[0]
	asItIs := plain(t, w.dsn, source)
	n := func() (n int) {
		assert.OK(t, asItIs.QueryRow("SELECT n FROM goods").Scan(&n))
		return n
	}
	for i, kill := range []string{"KILL QUERY %d", "KILL %d"} {
		assert.OK(t, cluster.CutOff(t.Context(), source))
		conn := require.Get(w.pool.Conn(t.Context()))(t)
		var id int64
		assert.OK(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
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
		require.Get(asItIs.Exec(fmt.Sprintf(kill, id)))(t)
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
