package consumer

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// gorm's PrepareStmt takes the pool from the configuration, not from the statement: a handler that asks for it must not
// find the real pool there and write outside its transaction.
func TestAHandlersGormKnowsNothingButTheTransaction(t *testing.T) {
	db := require.First(dedup.Open(t.Context(), "nobody@tcp(127.0.0.1:1)/nothing", dedup.OpenOptions{}))(t)
	pool := db.ConnPool
	if own, err := db.DB(); err == nil {
		defer own.Close()
	}
	guard := &guardedTx{}
	tx := gormOver(t.Context(), db, guard)
	for name, got := range map[string]gorm.ConnPool{
		"of its statement": tx.Statement.ConnPool, "of its configuration": tx.ConnPool,
		"of its session's configuration": tx.Session(&gorm.Session{NewDB: true}).ConnPool,
	} {
		assert.Is[gorm.ConnPool](t, got, guard, "the pool %s", name)
	}
	if db.ConnPool != pool || db.Statement.ConnPool != pool {
		t.Error("the engine's own handle has lost its pool")
	}
}

// guarded is a transaction on a server with a table own of one row, and the handle of it that a handler gets.
func guarded(t *testing.T, setup ...string) (*guardedTx, *gorm.DB) {
	t.Helper()
	db := require.First(mysqldb.Open(t.Context(), stack.MySQL(t), mysqldb.Options{}))(t)
	pool := require.Get(db.DB())(t)
	t.Cleanup(func() { pool.Close() })
	setup = append([]string{"CREATE TABLE own (k INT PRIMARY KEY, v INT) ENGINE=InnoDB", "INSERT INTO own VALUES (1, 1)"},
		setup...)
	for _, text := range setup {
		require.Get(pool.ExecContext(t.Context(), text))(t)
	}
	tx := require.Get(pool.BeginTx(t.Context(), nil))(t)
	t.Cleanup(func() { _ = tx.Rollback() })
	g := &guardedTx{tx: tx, ours: true, alone: true}
	require.OK(t, g.save(t.Context()))
	g.ours = false
	return g, gormOver(t.Context(), db, g)
}

// Given a query, when the next statement of the same call comes, then it is refused as the handler's fault, and not as
// MySQL's, while the rows of the query are not closed.
func TestOnlyRowsThatAreLeftStopTheNextStatement(t *testing.T) {
	t.Parallel()
	const two = "SELECT 1 UNION SELECT 2"
	for name, tc := range map[string]struct {
		query func(ctx context.Context, g *guardedTx, tx *gorm.DB) error
		want  error
	}{
		"a row that is not read": {
			query: func(ctx context.Context, g *guardedTx, _ *gorm.DB) error { return g.QueryRowContext(ctx, two).Err() },
			want:  mysqldb.ErrRowsOpen,
		},
		"gorm's row that is not read": {
			query: func(_ context.Context, _ *guardedTx, tx *gorm.DB) error { return tx.Raw(two).Row().Err() },
			want:  mysqldb.ErrRowsOpen,
		},
		"gorm's rows that are not closed": {
			query: func(_ context.Context, _ *guardedTx, tx *gorm.DB) error {
				_, err := tx.Raw(two).Rows() //nolint:rowserrcheck,sqlclosecheck // that is what is tried
				return err
			}, want: mysqldb.ErrRowsOpen,
		},
		"a row that is read": {query: func(ctx context.Context, g *guardedTx, _ *gorm.DB) error {
			return g.QueryRowContext(ctx, two).Scan(new(int))
		}},
		"a row that is read into nothing": {query: func(ctx context.Context, g *guardedTx, _ *gorm.DB) error {
			if g.QueryRowContext(ctx, two).Scan() == nil {
				return errors.New("no destination is enough")
			}
			return nil
		}},
		"gorm's Scan": {query: func(_ context.Context, _ *guardedTx, tx *gorm.DB) error {
			return tx.Raw(two).Scan(new(int)).Error
		}},
		"gorm's rows, closed": {query: func(_ context.Context, _ *guardedTx, tx *gorm.DB) error {
			rows, err := tx.Raw(two).Rows() //nolint:rowserrcheck // none is read
			if err == nil {
				err = rows.Close()
			}
			return err
		}},
		"the row of what has none": {query: func(ctx context.Context, g *guardedTx, _ *gorm.DB) error {
			return g.QueryRowContext(ctx, "UPDATE own SET v = 3").Err() // the driver takes it for one with rows
		}, want: mysqldb.ErrRowsOpen},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, tx := guarded(t)
			require.OK(t, tc.query(t.Context(), g, tx))
			_, err := g.ExecContext(t.Context(), "UPDATE own SET v = 2")
			if !errors.Is(err, tc.want) || err != nil && mysqldb.Classify(err) != mysqldb.FaultOther {
				t.Errorf("the next statement = %v (%v), want %v", err, mysqldb.Classify(err), tc.want)
			}
		})
	}
}

// Given a CALL during which the server itself rolls back, when it says so, then the call has not ended its transaction.
func TestWhatTheServerRolledBackNoCallHasEnded(t *testing.T) {
	t.Parallel()
	for _, number := range []string{"1206", "1213"} {
		state := map[string]string{"1206": "HY000", "1213": "40001"}[number]
		g, _ := guarded(t, "CREATE PROCEDURE meets() BEGIN ROLLBACK; SIGNAL SQLSTATE '"+state+
			"' SET MYSQL_ERRNO = "+number+"; END")
		if _, err := g.ExecContext(t.Context(), "CALL meets()"); err == nil {
			t.Fatal("the procedure has no error")
		}
		if err := g.returned(t.Context(), "ROLLBACK TO"); err != nil || g.over {
			t.Errorf("after %s: %v, over %v", number, err, g.over)
		}
	}
}
