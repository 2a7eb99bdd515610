package mysqldb

import (
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// A connection whose session somebody has changed is not lent again.
func TestAConnectionIsNotLentAfterItsLastUse(t *testing.T) {
	t.Parallel()
	w := &world{t: t, pool: poolOf(t, openWith(t, stack.MySQL(t), Options{MaxOpen: 1}))}
	used := map[int64]bool{}
	for _, text := range []string{"DO 0", "SET autocommit = 0", "SET completion_type = 'CHAIN'", "no statement"} {
		one := w.begin(w.pool)
		tx, id := one.tx, one.id
		var fresh int
		const question = "SELECT @@autocommit = 1 AND @@completion_type = 'NO_CHAIN'"
		require.OK(t, tx.QueryRowContext(t.Context(), question).Scan(&fresh))
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
		for _, text := range []string{"SAVEPOINT a", "INSERT INTO own VALUES (7, 7)"} {
			require.Get(tx.ExecContext(t.Context(), text))(t)
		}
		_, failed := tx.ExecContext(t.Context(), text)
		assert.That(t, failed != nil && Repeats(failed) == repeats, "%s: %v; a duplicate is %v, want %v", text, failed,
			!repeats, repeats)
		var rows int
		if err := tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM own").Scan(&rows); err != nil || rows != 3 {
			t.Errorf("%s: %d rows, %v; want 3: the two, and that of the statement before", text, rows, err)
		}
		_, err := tx.ExecContext(t.Context(), "RELEASE SAVEPOINT a")
		assert.That(t, err == nil, "%s has ended the transaction: %v", text, err)
		_, err = tx.ExecContext(t.Context(), "RELEASE SAVEPOINT a")
		assert.That(t, NoSavepoint(err), "a savepoint that is gone: %v", err)
		require.OK(t, tx.Rollback())
	}
}
