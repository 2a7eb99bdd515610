package mysqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		"for a row, prepared": {"BEGIN", "UPDATE x SET n = 1 WHERE a = 1", "UPDATE x SET n = n + ? WHERE a = 1", false, true},
		"for a row":           {"BEGIN", "UPDATE x SET n = 1 WHERE a = 1", "UPDATE x SET n = 2 WHERE a = 1", false, true},
		"for a row, behind names": {"BEGIN", "UPDATE x SET n = 1 WHERE a = 1", "SELECT n FROM x WHERE a = 1 FOR UPDATE", true,
			true},
		"for a table":         {"LOCK TABLES x WRITE", "DO 1", "UPDATE x SET n = 2 WHERE a = 1", false, true},
		"for nobody":          {"BEGIN", "DO 1", "UPDATE x SET n = SLEEP(60) WHERE a = 1", false, false},
		"for nobody, reading": {"BEGIN", "DO 1", "SELECT SLEEP(60) FROM x WHERE a = 1", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dsn := server.Database(t)
			pool := openPool(t, dsn, Options{LockWait: 30 * time.Second})
			repeated := Repeated(t.Context())
			stack.Exec(t, pool, "CREATE TABLE x (a INT PRIMARY KEY, n INT) ENGINE=InnoDB")
			stack.Exec(t, pool, "INSERT INTO x VALUES (1, 0)")
			other := require.Get(pool.Conn(t.Context()))(t)
			defer other.Close()
			if strings.Contains(tc.statement, "?") { // it is prepared when it comes again, and then there
				for range 2 {
					require.OK(t, readOrWrite(repeated, pool, tc.statement, tc.query))
				}
			}
			stack.Exec(t, other, tc.lock)
			stack.Exec(t, other, tc.then)
			require.OK(t, pool.PingContext(t.Context())) // so that the statement's time does not go to another connection
			const limit = 2 * time.Second
			ctx, cancel := context.WithTimeout(repeated, limit)
			defer cancel()
			ctx, activity := WithActivity(ctx)
			stop := activity.Watch(t.Context(), pool, 250*time.Millisecond)
			err := readOrWrite(ctx, pool, tc.statement, tc.query)
			assert.That(t, err != nil, "the statement was not cut off")
			stop()
			cut := activity.Cut()
			require.That(t, cut != nil, "nothing is known of a statement that was cut off")
			took, seen := activity.Inside()
			// a busy machine may be late to begin
			assert.That(t, took >= limit/2 && seen == tc.want, "%v in, waited %v; want about %v, %v", took, seen, limit, tc.want)
			waits := require.Get(cut.End(t.Context(), pool))(t)
			// Whoever waits for a table notices within a second that his client has gone, and may have stopped by now.
			assert.Is(t, waits || seen, tc.want, "%v: it waited", cut)
			poll.Until(t, "the server has ended it", func() bool {
				return stack.Number(t, pool, "SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND "+
					"id <> CONNECTION_ID() AND info IS NOT NULL") == 0
			})
			stack.Exec(t, other, "ROLLBACK")
			stack.Exec(t, other, "UNLOCK TABLES")
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
		_, err = tx.ExecContext(ctx, statement, slices.Repeat([]any{1}, strings.Count(statement, "?"))...)
		return errors.Join(err, tx.Commit())
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
	pool := openPool(t, stack.MySQL(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ctx, activity := WithActivity(ctx)
	tx := require.Get(pool.BeginTx(ctx, nil))(t)
	_, err := tx.ExecContext(ctx, "SELECT nonsense")
	assert.That(t, err != nil, "nonsense was understood")
	cancel()
	_, err = tx.ExecContext(ctx, "DO 1")
	assert.That(t, err != nil, "a statement was sent although its context had ended")
	activity.begin(ctx, 1, "DO 1").end(ctx.Err()) // as when it ends just after the pool has looked
	_ = tx.Rollback()
	cut := activity.Cut()
	assert.That(t, cut == nil, "%v was cut off, want none", cut)
}

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
	assert.Is(s.t, stack.Number(s.t, s.pool, "SELECT COUNT(*) FROM goods"), want, "rows")
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
	s := newWorldOn(t, stack.OwnMySQL(t).Database(t)).session()
	s.exec("SET GLOBAL max_prepared_stmt_count = 0")
	for _, id := range []int{10, 20, 30} {
		assert.OK(t, s.put(Repeated(t.Context()), id, id+1))
	}
	s.wantRows(1 + 6)
	assert.Is(t, s.counts(), "0 0 0", "refused: prepared, executed, closed")
}

// Given one connection, when transactions ask for waits of their own, then each has what it asks for, and the others
// have those of the pool.
func TestATransactionMayBoundItsWaits(t *testing.T) {
	w := newWorld(t)
	pool := openPool(t, w.dsn, Options{MaxOpen: 1, LockWait: 7 * time.Second})
	for _, tc := range []struct{ ask, want int }{ // seconds
		{0, 7}, {1, 1}, {1, 1}, {2, 2}, {0, 7},
	} {
		ctx := t.Context()
		if tc.ask > 0 {
			ctx = WithLockWait(ctx, time.Duration(tc.ask)*time.Second)
		}
		tx := require.Get(pool.BeginTx(ctx, nil))(t)
		got := stack.One[string](t, tx, "SELECT CONCAT(@@innodb_lock_wait_timeout, ' ', @@lock_wait_timeout)")
		assert.Is(t, got, fmt.Sprint(tc.want, " ", tc.want), "asked for %d, the bounds for rows and tables are", tc.ask)
		require.OK(t, tx.Rollback())
	}
}

// A connection whose session somebody has changed is not lent again.
func TestAConnectionIsNotLentAfterItsLastUse(t *testing.T) {
	t.Parallel()
	w := &world{t: t, pool: openPool(t, stack.MySQL(t), Options{MaxOpen: 1})}
	used := map[int64]bool{}
	for _, text := range []string{"DO 0", "SET autocommit = 0", "SET completion_type = 'CHAIN'", "no statement"} {
		one := w.begin(w.pool)
		tx, id := one.tx, one.id
		fresh := stack.Number(t, tx, "SELECT @@autocommit = 1 AND @@completion_type = 'NO_CHAIN'")
		_, failed := tx.ExecContext(LastUse(t.Context()), text)
		require.OK(t, tx.Commit())
		assert.That(t, !used[id] && fresh == 1, "before %q (%v): connection %d is lent again, or its session is not as it "+
			"should be", text, failed, id)
		used[id] = true
	}
}

// What a failed statement leaves of its transaction. A duplicate is undone alone, whoever of both servers says it; so
// are data errors, but what they mean is the handler's to say.
func TestADuplicateUndoesItsStatementAlone(t *testing.T) {
	w := newWorld(t)
	for _, text := range []string{
		"CREATE TABLE own (k INT PRIMARY KEY, v INT NOT NULL, CHECK (v < 100)) ENGINE=InnoDB",
		"CREATE TABLE child (k INT PRIMARY KEY, a INT, b INT, UNIQUE (a, b), FOREIGN KEY (a) REFERENCES own (k)" +
			" ON UPDATE CASCADE) ENGINE=InnoDB",
		"INSERT INTO own VALUES (1, 1), (2, 2)",
		"INSERT INTO child VALUES (1, 1, 7), (2, 3 - 1, 7)",
	} {
		w.exec(text)
	}
	for text, repeats := range map[string]bool{
		"INSERT INTO own VALUES (8, 8), (1, 1)":         true,
		"UPDATE own SET k = 2 WHERE k = 1":              true,
		"UPDATE child SET a = 1":                        true,
		"INSERT INTO own VALUES (8, 8), (9, 100)":       false,
		"INSERT INTO own VALUES (8, 8), (9, NULL)":      false,
		"INSERT INTO child VALUES (8, 1, 8), (9, 9, 9)": false,
		"UPDATE own SET v = 9223372036854775807 + v":    false,
	} {
		tx := w.begin(w.pool).tx
		stack.Exec(t, tx, "SAVEPOINT a")
		stack.Exec(t, tx, "INSERT INTO own VALUES (7, 7)")
		_, failed := tx.ExecContext(t.Context(), text)
		assert.That(t, failed != nil && Repeats(failed) == repeats, "%s: %v; a duplicate is %v, want %v", text, failed,
			!repeats, repeats)
		// the two, and that of the statement before
		assert.Is(t, stack.Number(t, tx, "SELECT COUNT(*) FROM own"), 3, "%s: rows", text)
		stack.Exec(t, tx, "RELEASE SAVEPOINT a") // else the statement has ended the transaction
		_, err := tx.ExecContext(t.Context(), "RELEASE SAVEPOINT a")
		assert.That(t, NoSavepoint(err) && Refuses(err), "a savepoint that is gone: %v", err)
		require.OK(t, tx.Rollback())
	}
}

// Given a connection whose statement has bytes in it that are no text, when it and others are looked at, then each is
// told of. MySQL 9 refuses to say anything of any connection then, by way of information_schema.
func TestAConnectionIsSeenWhileStatementsHaveBytes(t *testing.T) {
	w := newWorld(t)
	busy := require.Get(w.pool.Conn(t.Context()))(t)
	defer busy.Close()
	idle := require.Get(w.pool.Conn(t.Context()))(t)
	defer idle.Close()
	at := stack.One[int64](t, busy, "SELECT CONNECTION_ID()")
	rests := stack.One[int64](t, idle, "SELECT CONNECTION_ID()")
	ended := make(chan struct{})
	go func() { // joined below, after it was killed
		defer close(ended)
		_, _ = busy.ExecContext(context.WithoutCancel(t.Context()), "DO SLEEP(600), _binary'\xa3U\xb3'")
	}()
	poll.Until(t, "it is at work", func() bool {
		p := require.Get(ProcessOf(t.Context(), w.pool, at))(t)
		return strings.HasPrefix(p.Statement, "DO SLEEP(600)") && p.State != ""
	})
	p := require.Get(ProcessOf(t.Context(), w.pool, rests))(t)
	assert.That(t, p.Statement == "" && p.Host != "", "who rests is %+v; want a host, and no statement", p)
	stack.Exec(t, w.pool, "KILL ?", at)
	<-ended
	poll.Until(t, "it is gone", func() bool {
		_, err := ProcessOf(t.Context(), w.pool, at)
		return errors.Is(err, sql.ErrNoRows)
	})
}

// seeing is what docs/rights.md says that Holders needs: the first of it on MariaDB, the second on MySQL.
var seeing = []string{"PROCESS ON *.*", "SELECT ON performance_schema.*"}

// Given a transaction that has changed or inserted a row and idles, when one of another user's waits for that row and
// one of ours waits for a row of this one, or for the same row, then the one that idles is named, and once only it has
// been open for as long as is asked for.
func TestWhoHoldsWhatIsWaitedForIsNamed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ holds, wants string }{
		"changed":  {"UPDATE goods SET n = 1 WHERE id = 1", "UPDATE goods SET n = LENGTH(?) WHERE id = 1"},
		"inserted": {"INSERT INTO goods VALUES (7, 1)", "INSERT INTO goods VALUES (7, LENGTH(?))"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.exec("INSERT INTO goods VALUES (2, 0)")
			ours := openPool(t, stack.Restricted(t, w.dsn, append([]string{"ALL ON *"}, seeing...)...),
				Options{LockWait: 30 * time.Second})

			look := func(least time.Duration) []Holder {
				t.Helper()
				w.anew()
				return require.Get(Holders(t.Context(), ours, least))(t)
			}
			assert.Equal(t, look(0), nil, "named while nobody waits")
			holder, waiter := w.begin(w.pool), w.begin(w.pool)
			holder.exec(tc.holds)
			waiter.exec("UPDATE goods SET n = 2 WHERE id = 2")
			first := waiter.later(tc.wants, []byte("\xff\xfe")) // no text, as our keys and hashes
			w.waiting(1)
			assert.Equal(t, look(0), nil, "named while only another user waits")
			us := w.begin(ours)
			second := us.later("UPDATE goods SET n = 4 WHERE id = 2")
			w.waiting(2)
			var found []Holder
			require.That(t, poll.Within(time.Minute, func() bool { found = look(2 * time.Second); return len(found) > 0 }),
				"nobody is named")
			h := found[0]
			assert.That(t, len(found) <= 1 && h.Connection == holder.id && h.User == "root" && strings.HasPrefix(h.Host,
				"127.0.0.1") && h.Open >= 2*time.Second && strings.HasSuffix(h.Table, ".goods") && h.Statement == "" &&
				h.End() == fmt.Sprintf("KILL %d", holder.id), "named is %+v, want connection %d alone", found, holder.id)
			t.Log(found[0])
			found = look(time.Hour)
			assert.That(t, len(found) <= 0, "open for an hour is %v", found)
			w.exec(h.End())
			assert.OK(t, <-first)
			assert.OK(t, waiter.tx.Commit())
			assert.OK(t, <-second)
		})
	}
}

// Given a user who may not see it, the error says which right is missing.
func TestWhoMayNotSeeTheHoldersIsToldWhy(t *testing.T) {
	w := newWorld(t)
	_, err := Holders(t.Context(), openPool(t, stack.Restricted(t, w.dsn, "ALL ON *"), Options{}), 0)
	assert.That(t, Answered(err) && (strings.Contains(err.Error(), "PROCESS") || strings.Contains(err.Error(),
		"data_lock_waits")), "Holders = %v, want an answer that names the right", err)
}

// transaction is open on a connection of its own.
type transaction struct {
	w  *world
	tx *sql.Tx
	id int64
}

func (w *world) begin(pool *sql.DB) *transaction {
	w.t.Helper()
	tx := require.Get(pool.BeginTx(context.WithoutCancel(w.t.Context()), nil))(w.t)
	w.t.Cleanup(func() { _ = tx.Rollback() }) // it may have ended
	return &transaction{w, tx, stack.One[int64](w.t, tx, "SELECT CONNECTION_ID()")}
}

func (o *transaction) exec(text string) {
	o.w.t.Helper()
	require.Get(o.tx.Exec(text))(o.w.t)
}

// later executes it beside the test.
func (o *transaction) later(text string, args ...any) <-chan error {
	done := make(chan error, 1)
	go func() { // joined by who receives
		_, err := o.tx.Exec(text, args...)
		done <- err
	}()
	return done
}

// waiting waits until so many transactions of the world wait for rows.
func (w *world) waiting(n int) {
	w.t.Helper()
	poll.Until(w.t, fmt.Sprint(n, " transactions wait"), func() bool {
		w.anew()
		return stack.Number(w.t, w.pool, "SELECT COUNT(*) FROM "+stack.Transactions+" JOIN "+stack.Processes+
			" p ON p.id = conn WHERE waits AND p.db = DATABASE()") >= n
	})
}

// anew lets MariaDB make its picture of the transactions anew, which it does for who has not looked for 0.1 s.
func (w *world) anew() { w.exec("DO SLEEP(0.2)") }

// Given values for which an engine refuses a statement, when the server has no number of its own for that, then it is
// the statement's fault all the same.
func TestWhatAnEngineDoesNotDoForAValueIsTheStatementsFault(t *testing.T) {
	w := newWorld(t)
	w.exec("CREATE TABLE kind (id INT PRIMARY KEY, above INT, FOREIGN KEY (above) REFERENCES kind (id) ON DELETE CASCADE)")
	for id := range 20 {
		w.exec("INSERT INTO kind VALUES (?, NULLIF(?, 0))", id+1, id)
	}
	w.exec("CREATE TABLE text (id INT PRIMARY KEY, t TEXT, FULLTEXT (t)) ENGINE=InnoDB")
	const search = "DELETE FROM text WHERE MATCH (t) AGAINST (? IN BOOLEAN MODE)"
	for value, text := range map[string]string{
		"1": "DELETE FROM kind WHERE id = ?",
		`"` + strings.Repeat("a word ", 300) + `"`:                 search,
		strings.Repeat("(", 50) + "word" + strings.Repeat(")", 50): search,
	} {
		_, err := w.pool.Exec(text, value)
		assert.That(t, Refuses(err), "%s: %v is %v", text, err, Classify(err))
	}
}
