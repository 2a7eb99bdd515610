package mysqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// session is one connection of a world's pool.
type session struct {
	*world
	conn *sql.Conn
}

func (w *world) session() *session {
	w.t.Helper()
	conn, err := w.pool.Conn(w.t.Context())
	wantError(w.t, "connection", err, nil)
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
		err := s.conn.QueryRowContext(s.t.Context(), "SHOW SESSION STATUS LIKE '"+name+"'").Scan(&name, &value)
		wantError(s.t, name, err, nil)
		all += fmt.Sprint(value, " ")
	}
	return strings.TrimSpace(all)
}

func (s *session) wantCounts(when, want string) {
	s.t.Helper()
	if got := s.counts(); got != want {
		s.t.Errorf("%s: prepared, executed, closed: %s, want %s", when, got, want)
	}
}

func (s *session) wantRows(want int) {
	s.t.Helper()
	n := 0
	wantError(s.t, "count", s.pool.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM goods").Scan(&n), nil)
	if n != want {
		s.t.Errorf("%d rows, want %d", n, want)
	}
}

func TestARepeatedStatementIsPreparedWhenItComesAgain(t *testing.T) {
	s := newWorld(t).session()
	ctx := Repeated(t.Context())
	wantError(t, "once", s.put(ctx, 10, 11), nil)
	s.wantCounts("once", "0 0 0")
	wantError(t, "again", s.put(ctx, 20, 21), nil)
	s.wantCounts("again", "1 1 0")
	wantError(t, "a third time", s.put(ctx, 30, 31), nil)
	s.wantCounts("a third time", "1 2 0")

	wantError(t, "another", s.put(ctx, 40), nil)
	wantError(t, "the first", s.put(ctx, 50, 51), nil)
	s.wantCounts("another between", "1 3 0")
	wantError(t, "another, again", s.put(ctx, 60), nil)
	wantError(t, "another, again", s.put(ctx, 70), nil)
	s.wantCounts("another in its place", "2 4 1")
	wantError(t, "not repeated", s.put(t.Context(), 80), nil)
	s.wantCounts("not repeated", "2 4 1")
	s.wantRows(1 + 2*4 + 4)
}

// A repeated statement in a transaction fails like any other: with the server's error, and the transaction goes on to
// refuse or to commit as ever.
func TestAPreparedStatementFailsLikeItsText(t *testing.T) {
	s := newWorld(t).session()
	ctx := Repeated(t.Context())
	for _, id := range []int{10, 20} {
		wantError(t, "put", s.put(ctx, id, id+1), nil)
	}
	err := s.put(ctx, 30, 21)
	if !Duplicate(err) {
		t.Errorf("a duplicate = %v, want error 1062", err)
	}
	s.wantCounts("after the error", "1 2 0")
	s.wantRows(1 + 4)
	wantError(t, "after the error", s.put(ctx, 30, 31), nil)
	s.wantRows(1 + 6)
}

// The table of a prepared statement may be altered, as by a migration: the server prepares it anew.
func TestAPreparedStatementOutlivesAMigration(t *testing.T) {
	s := newWorld(t).session()
	ctx := Repeated(t.Context())
	for _, id := range []int{10, 20} {
		wantError(t, "put", s.put(ctx, id, id+1), nil)
	}
	s.exec("ALTER TABLE goods ADD COLUMN note VARCHAR(9) NOT NULL DEFAULT 'new'")
	wantError(t, "put", s.put(ctx, 30, 31), nil)
	s.wantRows(1 + 6)
}

func TestAServerThatPreparesNoMoreGetsTheText(t *testing.T) {
	server := stack.OwnMySQL(t)
	s := newWorldOn(t, server.Database(t)).session()
	s.exec("SET GLOBAL max_prepared_stmt_count = 0")
	ctx := Repeated(t.Context())
	for _, id := range []int{10, 20, 30} {
		wantError(t, "put", s.put(ctx, id, id+1), nil)
	}
	s.wantRows(1 + 6)
	s.wantCounts("refused", "0 0 0")
}

// What a prepared statement waited for is found out like that of a text.
func TestAPreparedStatementThatIsCutOffIsEnded(t *testing.T) {
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
		wantError(t, "update", update(t.Context()), nil)
	}
	other := w.session()
	for _, text := range []string{"BEGIN", "UPDATE goods SET n = 7"} {
		_, err := other.conn.ExecContext(t.Context(), text)
		wantError(t, text, err, nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ctx, activity := WithActivity(ctx)
	if err := update(ctx); err == nil {
		t.Error("the statement was not cut off")
	}
	cut := activity.Cut()
	if cut == nil {
		t.Fatal("nothing is known of a statement that was cut off")
	}
	waited, err := cut.End(t.Context(), w.pool)
	if err != nil || !waited {
		t.Errorf("%v: it waited: %v, %v", cut, waited, err)
	}
	poll.Until(t, "the server has ended it", func() bool {
		n := 0
		err := w.pool.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = "+
			"DATABASE() AND id <> CONNECTION_ID() AND info IS NOT NULL").Scan(&n)
		return err == nil && n == 0
	})
}
