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
			ours := poolOf(t, openWith(t, stack.Restricted(t, w.dsn, append([]string{"ALL ON *"}, seeing...)...),
				Options{LockWait: 30 * time.Second}))
			look := func(least time.Duration) []Holder {
				t.Helper()
				w.anew()
				return require.Get(Holders(t.Context(), ours, least))(t)
			}
			if found := look(0); len(found) > 0 {
				t.Errorf("while nobody waits, %v", found)
			}
			holder, waiter := w.begin(w.pool), w.begin(w.pool)
			holder.exec(tc.holds)
			waiter.exec("UPDATE goods SET n = 2 WHERE id = 2")
			first := waiter.later(tc.wants, []byte("\xff\xfe")) // no text, as our keys and hashes
			w.waiting(1)
			if found := look(0); len(found) > 0 {
				t.Errorf("while only another user waits, %v", found)
			}
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
	_, err := Holders(t.Context(), poolOf(t, open(t, stack.Restricted(t, w.dsn, "ALL ON *"))), 0)
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
	one := &transaction{w: w, tx: tx}
	assert.OK(w.t, tx.QueryRow("SELECT CONNECTION_ID()").Scan(&one.id))
	return one
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
