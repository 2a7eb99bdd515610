package sql

import (
	"context"
	stdsql "database/sql"
	"database/sql/driver"
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const orders = `CREATE TABLE tb_order (sn VARCHAR(20) PRIMARY KEY, state VARCHAR(20) NOT NULL) ENGINE=InnoDB;
CREATE TABLE goods (id INT PRIMARY KEY, amount INT UNSIGNED NOT NULL) ENGINE=InnoDB;
INSERT INTO goods VALUES (1, 100), (2, 100), (3, 0);
INSERT INTO tb_order VALUES ('a', 'open'), ('b', 'open'), ('c', 'open'), ('d', 'closed')`

const orderFile = `UPDATE tb_order SET state = 'closed' WHERE sn = :sn AND state = 'open'; -- expect 1, else done
-- for each /items
UPDATE goods SET amount = amount + :n WHERE id = :id; -- expect 1, else permanent: unknown goods
-- once
SELECT id FROM goods WHERE id = :last; -- expect 1, else retry: not there yet`

func order(sn string, last int, items ...string) string {
	return fmt.Sprintf(`{"sn":%q,"last":%d,"items":[%s]}`, sn, last, strings.Join(items, ","))
}

func item(id, n int) string { return fmt.Sprintf(`{"id":%d,"n":%d}`, id, n) }

// Given a batch in which messages fail in every way, when it is handled, then exactly they are blamed, each with its
// own reason; when the others are handled again, as the engine does, then all of them have their effect.
func TestOneMessagesVerdictCostsNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders)
	h := New(w.parse(orderFile))
	msgs := messages(
		order("a", 1, item(1, 1), item(2, 2)),
		order("b", 1, item(1, 10), item(9, 1)), // fails after two writes
		order("d", 9, item(9, 1)),              // done before anything
		order("c", 9, item(1, 50)),             // fails at its end
		order("b", 2, item(2, 5)),              // the same order: it is open only when the one above was undone
	)
	by := blamed(t, w.handle(h, msgs...))
	assert.That(t, len(by) == 2 && consumer.IsPermanent(by[1]) && !consumer.IsPermanent(by[3]) &&
		by[1].Error() == "unknown goods (line 3, items[1]: changed 0 rows, expected 1)" &&
		by[3].Error() == "not there yet (line 5: found 0 rows, expected 1)", "blamed: %v", by)
	const look = "SELECT sn, state FROM tb_order UNION ALL SELECT id, amount FROM goods ORDER BY 1"
	w.want("nothing was committed", look, "1 100\n2 100\n3 0\na open\nb open\nc open\nd closed")
	require.OK(t, w.handle(h, msgs[0], msgs[2], msgs[4]))
	w.want("the others are", look, "1 101\n2 107\n3 0\na closed\nb closed\nc open\nd closed")
}

// Given batches, when nobody fails or only before a write, then there is one savepoint; when somebody fails after a
// write, then the batch is undone once and each message gets one.
func TestSavepointsAreForBatchesThatRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders)
	f := w.parse(strings.Replace(orderFile, "else done", "else retry", 1))
	good, early, late := order("a", 1, item(1, 1)), order("x", 1), order("b", 9, item(1, 1))
	for _, test := range []struct {
		name   string
		bodies []string
		want   int // savepoints of messages
		undone int
	}{
		{"one alone", []string{late}, 0, 0},
		{"nobody fails", []string{good, order("b", 1)}, 0, 0},
		{"before a write", []string{early, good, early}, 0, 0},
		{"after a write", []string{good, late, early}, 3, 2},
	} {
		tx := w.db.WithContext(t.Context()).Begin()
		pool := &countedPool{ConnPool: tx.Statement.ConnPool}
		tx.Statement.ConnPool = pool
		msgs := messages(test.bodies...)
		h := New(f)
		for i := range msgs {
			require.OK(t, h.(consumer.Validator).Validate(&msgs[i]))
		}
		_ = h.Handle(t.Context(), tx, msgs)
		assert.Is(t, [2]int{pool.ofMessages, pool.undone}, [2]int{test.want, test.undone},
			"%s: savepoints of messages, and undone", test.name)
		require.OK(t, pool.ConnPool.(gorm.TxCommitter).Rollback())
	}
}

// countedPool counts savepoints of messages, and what is undone.
type countedPool struct {
	gorm.ConnPool
	ofMessages, undone int
}

// ExecContext counts a statement and runs it.
func (p *countedPool) ExecContext(ctx context.Context, query string, args ...any) (stdsql.Result, error) {
	switch {
	case query == "SAVEPOINT rollbackd_sql_message":
		p.ofMessages++
	case strings.HasPrefix(query, "ROLLBACK TO"):
		p.undone++
	case strings.HasPrefix(query, "CALL"): // of whose last statement alone MySQL tells the rows
		return driver.RowsAffected(0), nil
	}
	return p.ConnPool.ExecContext(ctx, query, args...)
}

// Given values that the tables refuse, or a statement that the server refuses for its values, when a batch is handled,
// then the message is blamed; a deadlock or a missing table blames nobody.
func TestErrorsOfTheDatabaseBlameOnlyForWhatIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders)
	h := New(w.parse(orderFile))
	by := blamed(t, w.handle(h, messages(order("a", 1, item(1, 1)), order("b", 1, item(3, -1)))...))
	assert.That(t, len(by) == 1 && mysqldb.Classify(by[1]) == mysqldb.FaultData &&
		strings.HasPrefix(by[1].Error(), "line 3, items[0]: Error 1690"), "blamed: %v", by)
	unfit := New(w.parse("UPDATE goods SET amount = amount + 1 WHERE CONVERT(id USING latin1) = :id"))
	by = blamed(t, w.handle(unfit, messages(`{"id":"1"}`, `{"id":"😀"}`, `{"id":"2"}`)...))
	assert.That(t, len(by) == 1 && mysqldb.Classify(by[1]) == mysqldb.FaultRefused, "blamed: %v", by)
	w.exec("RENAME TABLE goods TO elsewhere")
	err := w.handle(h, messages(order("a", 1, item(1, 1)), order("b", 1))...)
	assert.That(t, mysqldb.Classify(err) == mysqldb.FaultUnavailable && !strings.HasPrefix(err.Error(), "message"),
		"without the table: %v", err)
}

// Given a guard that changes more than it was taken to, when it is met, then the message is not marked done with it.
func TestDoneMeansThatNothingWasChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders)
	h := New(w.parse("UPDATE tb_order SET state = :to WHERE state = 'open'; -- expect 1, else done"))
	by := blamed(t, w.handle(h, messages(`{"to":"closed"}`)...))
	assert.That(t, consumer.IsPermanent(by[0]), "blamed: %v", by)
	assert.Has(t, errorText(by[0]), "changed 3 rows, expected 1", "blamed")
	w.exec("UPDATE tb_order SET state = 'closed'")
	assert.OK(t, w.handle(h, messages(`{"to":"closed"}`)...), "with nothing to do:")
}

// Given a procedure, when a file allows it, then it is called in the transaction, and what it signals is the message's
// failure; a failing message's call is undone before another message is looked at.
func TestAProcedureThatIsAllowedIsCalledInTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders)
	w.exec(`CREATE PROCEDURE give_back(IN which INT, IN pieces INT) BEGIN
		UPDATE goods SET amount = amount + pieces WHERE id = which;
		IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'unknown goods'; END IF;
		SELECT amount FROM goods WHERE id = which;
	END`)
	h := New(w.parse(`-- allow call
CALL give_back(:id, :n);
SELECT id FROM goods WHERE id = :last AND amount <= 110; -- expect 1, else permanent: too early`))
	call := func(id, n, last int) string { return fmt.Sprintf(`{"id":%d,"n":%d,"last":%d}`, id, n, last) }
	require.OK(t, w.handle(h, messages(call(1, 5, 1), call(2, 7, 1))...))
	const look = "SELECT id, amount FROM goods ORDER BY id"
	w.want("both are called", look, "1 105\n2 107\n3 0")
	by := blamed(t, w.handle(h, messages(call(1, 5, 1), call(9, 1, 1))...))
	assert.That(t, len(by) == 1 && strings.Contains(errorText(by[1]), "unknown goods"), "blamed: %v, want message 1", by)
	by = blamed(t, w.handle(h, messages(call(1, 6, 9), call(2, 1, 1))...))
	assert.That(t, len(by) == 1 && consumer.IsPermanent(by[0]), "blamed: %v, want message 0 for good", by)
	w.want("nothing more was committed", look, "1 105\n2 107\n3 0")
	m := messages(call(3, 1, 3))[0]
	require.OK(t, h.(consumer.Validator).Validate(&m))
	end, err := h.(*handler).file.run(t.Context(), &countedPool{ConnPool: w.pool}, &m, nil)
	assert.That(t, err == nil && end.wrote, "a call that tells of no row is taken for one that wrote nothing: %v", err)
}

// Given a trigger that writes also where no row changes, when the message that it wrote for fails, then the next one is
// not judged by what that left.
func TestWhatATriggerWroteForOneWhoFailsIsNobodysElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, orders+`; CREATE TABLE entry (id INT PRIMARY KEY) ENGINE=InnoDB;
CREATE TRIGGER closing BEFORE UPDATE ON tb_order FOR EACH ROW INSERT INTO entry VALUES (1)`)
	h := New(w.parse("UPDATE tb_order SET state = 'closed' WHERE sn = :sn; -- expect 1, else permanent"))
	by := blamed(t, w.handle(h, messages(order("d", 1), order("a", 1))...))
	assert.That(t, len(by) == 1 && by[0] != nil, "blamed: %v, want message 0 alone", by)
}
