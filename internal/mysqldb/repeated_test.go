package mysqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// session is one connection of a world's pool.
type session struct {
	*world
	conn *sql.Conn
}

func (w *world) session() *session {
	w.t.Helper()
	conn := require.Get(w.pool.Conn(w.t.Context()))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	return &session{w, conn}
}

// put inserts rows with one statement of placeholders.
func (s *session) put(ctx context.Context, ids ...int) error {
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	text := "INSERT INTO goods (id, n) VALUES " + strings.TrimSuffix(strings.Repeat("(?,0),", len(ids)), ",")
	_, err := s.conn.ExecContext(ctx, text, args...)
	return err
}

// counts are the connection's statements that were prepared, executed as such, and closed.
func (s *session) counts() (all string) {
	s.t.Helper()
	for _, name := range []string{"Com_stmt_prepare", "Com_stmt_execute", "Com_stmt_close"} {
		var value int
		require.OK(s.t, s.conn.QueryRowContext(s.t.Context(), "SHOW SESSION STATUS LIKE '"+name+"'").Scan(&name, &value))
		all += fmt.Sprint(value, " ")
	}
	return strings.TrimSpace(all)
}

func (s *session) wantRows(want int) {
	s.t.Helper()
	n := 0
	assert.OK(s.t, s.pool.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM goods").Scan(&n))
	assert.Is(s.t, n, want, "rows")
}

// A repeated statement is prepared when it comes again, and again after another one was in its place. It fails like its
// text, and outlives a migration of its table: the server prepares it anew.
func TestARepeatedStatementIsPreparedWhenItComesAgain(t *testing.T) {
	s := newWorld(t).session()
	again := Repeated(t.Context())
	for i, step := range []struct {
		ctx    context.Context
		ids    []int
		counts string // of what was prepared, executed so and closed
	}{
		{again, []int{10, 11}, "0 0 0"}, {again, []int{20, 21}, "1 1 0"}, {again, []int{30, 31}, "1 2 0"},
		{again, []int{40}, "1 2 0"}, {again, []int{50, 51}, "1 3 0"}, // another between
		{again, []int{60}, "1 3 0"}, {again, []int{70}, "2 4 1"}, // another in its place
		{t.Context(), []int{80}, "2 4 1"}, // not repeated
	} {
		assert.OK(t, s.put(step.ctx, step.ids...))
		assert.Is(t, s.counts(), step.counts, "step %d: prepared, executed, closed", i)
	}
	err := s.put(again, 80)
	assert.That(t, Duplicate(err), "a duplicate = %v, want error 1062", err)
	s.wantRows(1 + 2*4 + 4)
	s.exec("ALTER TABLE goods ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'new'")
	assert.OK(t, s.put(again, 90))
	s.wantRows(1 + 2*4 + 5)
}

func TestAServerThatPreparesNoMoreGetsTheText(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	s := newWorldOn(t, server.Database(t)).session()
	s.exec("SET GLOBAL max_prepared_stmt_count = 0")
	for _, id := range []int{10, 20, 30} {
		assert.OK(t, s.put(Repeated(t.Context()), id, id+1))
	}
	s.wantRows(1 + 6)
	assert.Is(t, s.counts(), "0 0 0", "refused: prepared, executed, closed")
}

// What a prepared statement waited for is found out like that of a text.
func TestAPreparedStatementThatIsCutOffIsEnded(t *testing.T) {
	t.Parallel()
	server := stack.OwnMySQL(t)
	dsn := server.Database(t)
	w := newWorldOn(t, dsn)
	one := openWith(t, dsn, Options{LockWait: 30 * time.Second, MaxOpen: 1})
	update := func(ctx context.Context) error {
		tx, err := poolOf(t, one).BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // or the connection is gone
		_, err = tx.ExecContext(Repeated(ctx), "UPDATE goods SET n = n + ? WHERE id = 1", 1)
		return err
	}
	for range 2 {
		assert.OK(t, update(t.Context()))
	}
	other := w.session()
	for _, text := range []string{"BEGIN", "UPDATE goods SET n = 7"} {
		require.Get(other.conn.ExecContext(t.Context(), text))(t)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ctx, activity := WithActivity(ctx)
	err := update(ctx)
	assert.That(t, err != nil, "the statement was not cut off")
	cut := activity.Cut()
	require.That(t, cut != nil, "nothing is known of a statement that was cut off")
	waited, err := cut.End(t.Context(), w.pool)
	assert.That(t, err == nil && waited, "%v: it waited: %v, %v", cut, waited, err)
	poll.Until(t, "the server has ended it", func() bool {
		n := 0
		err := w.pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = "+
			"DATABASE() AND id <> CONNECTION_ID() AND info IS NOT NULL").Scan(&n)
		return err == nil && n == 0
	})
}
