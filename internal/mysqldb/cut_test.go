package mysqldb

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a statement that is cut off, when the server is asked, then it says whether that waited for a lock, and is
// not left at work on it. The server is the test's own, because another test's wait for a row is a doubt.
func TestACutStatementIsKnownByWhatItWaitedForAndEnded(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	for name, tc := range map[string]struct {
		lock, then string // by somebody else
		statement  string
		query      bool // a reading one
		want       bool
	}{
		"for a row": {"BEGIN", "UPDATE x SET n = 1 WHERE a = 1", "UPDATE x SET n = 2 WHERE a = 1", false, true},
		"for a row, behind names": {"BEGIN", "UPDATE x SET n = 1 WHERE a = 1", "SELECT n FROM x WHERE a = 1 FOR UPDATE", true,
			true},
		"for a table":         {"LOCK TABLES x WRITE", "DO 1", "UPDATE x SET n = 2 WHERE a = 1", false, true},
		"for nobody":          {"BEGIN", "DO 1", "UPDATE x SET n = SLEEP(60) WHERE a = 1", false, false},
		"for nobody, reading": {"BEGIN", "DO 1", "SELECT SLEEP(60) FROM x WHERE a = 1", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := server.Database(t)
			pool := poolOf(t, openWith(t, dsn, Options{LockWait: 30 * time.Second}))
			for _, text := range []string{"CREATE TABLE x (a INT PRIMARY KEY, n INT) ENGINE=InnoDB",
				"INSERT INTO x VALUES (1, 0)"} {
				require.Get(pool.ExecContext(t.Context(), text))(t)
			}
			other := require.Get(pool.Conn(t.Context()))(t)
			defer other.Close()
			for _, text := range []string{tc.lock, tc.then} {
				require.Get(other.ExecContext(t.Context(), text))(t)
			}
			require.OK(t, pool.PingContext(t.Context())) // so that the statement's time does not go to another connection
			const limit = 2 * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			ctx, activity := WithActivity(ctx)
			stop := activity.Watch(t.Context(), pool, 250*time.Millisecond)
			err := readOrWrite(ctx, pool, tc.statement, tc.query)
			assert.That(t, err != nil, "the statement was not cut off")
			stop()
			cut := activity.Cut()
			require.That(t, cut != nil, "nothing is known of a statement that was cut off")
			took, seen := activity.Inside()
			if took < limit/2 || seen != tc.want { // a busy machine may be late to begin
				t.Errorf("%v inside, waited %v; want about %v, %v", took, seen, limit, tc.want)
			}
			waits := require.Get(cut.End(t.Context(), pool))(t)
			// Whoever waits for a table notices within a second that his client has gone, and may have stopped by now.
			assert.Is(t, waits || seen, tc.want, "%v: it waited", cut)
			poll.Until(t, "the server has ended it", func() bool {
				n := 0
				err := pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = "+
					"DATABASE() AND id <> CONNECTION_ID() AND info IS NOT NULL").Scan(&n)
				return err == nil && n == 0
			})
			require.Get(other.ExecContext(t.Context(), "ROLLBACK"))(t)
			require.Get(other.ExecContext(t.Context(), "UNLOCK TABLES"))(t)
		})
	}
}

// readOrWrite runs a statement in a transaction of its own.
func readOrWrite(ctx context.Context, pool *sql.DB, statement string, read bool) error {
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // the connection is gone
	if !read {
		_, err = tx.ExecContext(ctx, statement)
		return err
	}
	rows, err := tx.QueryContext(ctx, statement)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

// A statement that failed, or was never sent, is not cut off.
func TestOnlyWhatWasInTheServersHandsIsCutOff(t *testing.T) {
	pool := poolOf(t, open(t, stack.MySQL(t)))
	ctx, cancel := context.WithCancel(t.Context())
	ctx, activity := WithActivity(ctx)
	tx := require.Get(pool.BeginTx(ctx, nil))(t)
	_, err := tx.ExecContext(ctx, "SELECT nonsense")
	assert.That(t, err != nil, "nonsense was understood")
	cancel()
	_, err = tx.ExecContext(ctx, "DO 1")
	assert.That(t, err != nil, "a statement was sent although its context had ended")
	_ = tx.Rollback()
	cut := activity.Cut()
	assert.That(t, cut == nil, "%v was cut off, want none", cut)
}
