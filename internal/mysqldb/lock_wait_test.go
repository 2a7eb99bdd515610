package mysqldb

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given one connection, when transactions ask for waits of their own, then each has what it asks for, and the others
// have those of the pool.
func TestATransactionMayBoundItsWaits(t *testing.T) {
	w := newWorld(t)
	pool := poolOf(t, openWith(t, w.dsn, Options{MaxOpen: 1, LockWait: 7 * time.Second}))
	for _, tc := range []struct{ ask, want time.Duration }{
		{0, 7 * time.Second}, {time.Second, time.Second}, {time.Second, time.Second}, {2 * time.Second, 2 * time.Second},
		{0, 7 * time.Second},
	} {
		ctx := t.Context()
		if tc.ask > 0 {
			ctx = WithLockWait(ctx, tc.ask)
		}
		assert.Is(t, waitsIn(ctx, t, pool), [2]time.Duration{tc.want, tc.want},
			"asked for %v, the bounds for rows and tables are", tc.ask)
	}
}

func waitsIn(ctx context.Context, t *testing.T, pool *sql.DB) (seconds [2]time.Duration) {
	t.Helper()
	tx := require.Get(pool.BeginTx(ctx, nil))(t)
	defer func() { _ = tx.Rollback() }()
	var row, table int64
	assert.OK(t, tx.QueryRowContext(ctx, "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout").
		Scan(&row, &table))

	return [2]time.Duration{time.Duration(row) * time.Second, time.Duration(table) * time.Second}
}
