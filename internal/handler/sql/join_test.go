package sql

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a table whose CHECK is a bound, or another condition, or a statement with a condition on what the server
// writes beside the sum, when two messages add to one row, then they are added up only where that means the same, and
// what the CHECK or the condition refuses is refused either way.
func TestRunsAreAddedUpOnlyBelowBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE bound (id INT PRIMARY KEY, n INT NOT NULL, at DATETIME DEFAULT '2021-01-01' ON UPDATE CURRENT_TIMESTAMP,
	gone INT DEFAULT 0, CHECK (n >= -5), CONSTRAINT most CHECK (n < 100)) ENGINE=InnoDB;
CREATE TABLE odd (id INT PRIMARY KEY, n INT NOT NULL CHECK (n MOD 2 = 0)) ENGINE=InnoDB;
CREATE TABLE told (id INT PRIMARY KEY, n INT NOT NULL, free INT AS (6 - n)) ENGINE=InnoDB`)
	for of, want := range map[string]bool{
		"bound:": true, "odd:": false, "told: AND free >= 0": false, "bound: AND at > '2020-01-01'": false,
		"bound: AND gone = 0": true,
	} {
		table, condition, _ := strings.Cut(of, ":")
		w.exec("REPLACE INTO " + table + " (id, n) VALUES (1, 0)")
		f := w.parse("UPDATE " + table + " SET n = n + :n WHERE id = :id" + condition + "; -- expect 1, else permanent")
		p := f.plan.Load()
		require.That(t, p.joins(), "statements on %s are not joined at all", of)
		for _, s := range f.all {
			assert.Is(t, p.shapes[s].repeats, want, "runs on one row of %s are added up", of)
		}
		h := New(f)
		assert.OK(t, w.handle(h, messages(`{"id":1,"n":4}`, `{"id":1,"n":2}`)...), of)
		err := w.handle(h, messages(`{"id":1,"n":1}`, `{"id":1,"n":99}`)...)
		assert.That(t, err != nil, "%s took what is refused", of)
		w.want(of, "SELECT n FROM "+table, "6")
	}
}

// Given two messages whose texts are the same when they stand in a row, when they are written by joined statements,
// beside the time, then each row has those of its own message, and nothing is run a second time.
func TestTextsOfTwoMessagesAreNotMistakenForEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE goods (id INT PRIMARY KEY, house VARCHAR(9), shelf VARCHAR(9), at DATETIME) ENGINE=InnoDB;
INSERT INTO goods (id) VALUES (1), (2)`)
	f := w.parse("UPDATE goods SET house = :house, shelf = :shelf, at = NOW() WHERE id = :id; -- expect 1, else permanent")
	require.That(t, f.Joined(), "it is not joined: nothing is tried")
	h := New(f).(*handler)
	assert.OK(t, w.handle(h, messages(`{"id":1,"house":"A1","shelf":"1"}`, `{"id":2,"house":"A","shelf":"11"}`)...))
	w.want("where they are", "SELECT id, house, shelf FROM goods ORDER BY id", "1 A1 1\n2 A 11")
	assert.Is(t, h.single.Load(), 0, "batches that are run message by message, because of a refusal")
}

// Given a row that has already what a joined statement writes, when it is written with others, then its message alone
// is blamed, as it would be by itself: nothing was changed.
func TestAJoinedRowThatStaysAsItIsWasNotChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE goods (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL) ENGINE=InnoDB;
INSERT INTO goods VALUES (1, 'old'), (2, 'new'), (3, 'old')`)
	f := w.parse("UPDATE goods SET state = 'new' WHERE id = :id; -- expect 1, else permanent")
	require.That(t, f.Joined(), "it is not joined: nothing is tried")
	h := New(f)
	room := h.(*handler).gate.room
	room <- struct{}{} // for somebody inside: who has taken locks for joined messages does not wait for him
	by := blamed(t, w.handle(h, messages(`{"id":1}`, `{"id":2}`, `{"id":3}`)...))
	<-room
	assert.That(t, len(by) == 1 && by[1] != nil, "blamed: %v, want message 1 alone", by)
	assert.OK(t, w.handle(h, messages(`{"id":1}`, `{"id":3}`)...), "the others:")
}

// Only where joined statements must mean the same are they joined: testdata/joined.txt has files, and which are.
func TestFilesAreJoinedOnlyWhereTheMeaningAllows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE goods (id INT PRIMARY KEY, code VARCHAR(20), amount INT, price DECIMAL(10,2), n INT) ENGINE=InnoDB;
CREATE TABLE other (id INT PRIMARY KEY, amount INT NOT NULL) ENGINE=InnoDB;
CREATE TABLE pairs (a INT, b INT, c VARCHAR(40), PRIMARY KEY (a, b), UNIQUE (c(4))) ENGINE=InnoDB;
CREATE TABLE places (house CHAR(3), id INT, free INT, PRIMARY KEY (house, id)) ENGINE=InnoDB;
CREATE TABLE parent (id INT PRIMARY KEY, ref INT UNIQUE) ENGINE=InnoDB;
CREATE TABLE child (
	id INT PRIMARY KEY, ref INT, FOREIGN KEY (ref) REFERENCES parent (ref) ON UPDATE CASCADE) ENGINE=InnoDB;
CREATE TABLE watched (id INT PRIMARY KEY, amount INT) ENGINE=InnoDB;
CREATE TRIGGER watch AFTER UPDATE ON watched FOR EACH ROW INSERT INTO other VALUES (NEW.id, 1);
CREATE VIEW seen AS SELECT * FROM goods`)
	golden.Says(t, "testdata/joined.txt", func(text string) string {
		f := w.parse(text)
		assert.Is(t, len(f.Unjoined()) == 0, f.Joined(), "nothing says why it is not joined: %s", text)
		return map[bool]string{true: "joined", false: "not joined"}[f.Joined()]
	})
	const e = "; -- expect 1, else retry\n"
	// each statement that is in the way is named, with its reason and what would do
	f := w.parse("UPDATE goods SET amount = amount + :n WHERE n = :n AND amount = :m" + e +
		"\nUPDATE watched SET amount = amount + :n WHERE id = :id;\nDELETE FROM other WHERE id = :id" + e +
		"\nUPDATE other SET amount = LEFT(:n, 2) WHERE id = :id" + e)
	var got []string
	for _, not := range f.Unjoined() {
		got = append(got, fmt.Sprintf("%v %s (%s)", not.At, not.Why, not.Faster))
	}
	want := []string{
		"1:1 goods has no primary or unique key on n, amount, or on a part of them (a unique key on columns that are " +
			"compared with parameters: here (n, amount))",
		"3:1 any number of rows will do (-- expect 1 behind it, for a row that is found by its key)",
		"4:1 it is no UPDATE, no SELECT and no INSERT … VALUES (" + noForm + ")",
		`6:1 "LEFT" is not of the form that is joined (` + updateForm + ")",
	}
	assert.Is(t, strings.Join(got, "\n"), strings.Join(want, "\n"), "not joined because of")
}

// Given a CHECK as servers show it, then it is known for a bound of one column, or for something else.
func TestABoundIsKnownAsServersShowIt(t *testing.T) {
	t.Parallel()
	for definition, want := range map[string]bool{
		"CHECK (`n` >= -5)":              true, // MariaDB
		"CHECK ((`n` >= -(5)))":          true, // MySQL
		"CHECK (`n` < 100)":              true,
		"CHECK ((`n` >= -(5 + `m`)))":    false,
		"CHECK ((`n` >= -(5) + `m`))":    false,
		"CHECK ((`n` % 2) = 0)":          false,
		"CHECK (((`n` > 1) or `m` < 2))": false,
	} {
		assert.Is(t, checksAreBounds(tokensOf(definition)), want, "%s is a bound", definition)
	}
}

// Given messages that write the number of a row as text, of which the first names none, when they are handled by
// statements that are joined, then it alone is blamed, and the others have their effect.
func TestANumberThatIsWrittenAsTextNamesItsOwnRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE goods (id INT PRIMARY KEY, n INT NOT NULL) ENGINE=InnoDB;
INSERT INTO goods VALUES (1, 0), (2, 0)`)
	for _, text := range []string{
		"UPDATE goods SET n = n + :n WHERE id = :id; -- expect 1, else permanent",
		"SELECT id FROM goods WHERE id = :id; -- expect 1, else permanent",
	} {
		f := w.parse(text)
		require.That(t, f.Joined(), "it is not joined: nothing is tried")
		by := blamed(t, w.handle(New(f), messages(`{"id":"9","n":1}`, `{"id":"1","n":2}`, `{"id":"2","n":3}`)...))
		assert.That(t, len(by) == 1 && by[0] != nil, "%s: blamed are %v, want message 0 alone", text, by)
	}
}

// Given an index, or a column that no statement names, by which joined statements find their rows, when somebody takes
// it away while they run, then a batch that fails is handled when it is tried again: the statements themselves are as
// good as before.
func TestWhatStatementsDoNotNeedMayGoWhileTheyRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE seen (id INT NOT NULL, old INT, UNIQUE by_id (id)) ENGINE=InnoDB;
CREATE TABLE goods (id INT NOT NULL, n INT NOT NULL, UNIQUE by_id (id)) ENGINE=InnoDB;
INSERT INTO seen VALUES (1, 0), (2, 0); INSERT INTO goods VALUES (1, 0), (2, 0)`)
	for gone, text := range map[string]string{
		"seen DROP old": "SELECT id FROM seen WHERE id = :id; -- expect 1, else permanent",
		"goods DROP INDEX by_id, ADD UNIQUE k (id)": "UPDATE goods SET n = n + 1 WHERE id = :id; -- expect 1, else permanent",
	} {
		f := w.parse(text)
		require.That(t, f.Joined(), "it is not joined: nothing is tried")
		w.exec("ALTER TABLE " + gone)
		h := New(f)
		assert.That(t, w.handle(h, messages(`{"id":1}`, `{"id":2}`)...) != nil, "%s: nothing was in the way", gone)
		assert.OK(t, w.handle(h, messages(`{"id":1}`, `{"id":2}`)...), "%s, the second time:", gone)
	}
}

// Given messages that add to one row, where NULL stands, and write what then stands there already, when they are
// joined, then they are judged as they are one by one: the second changes nothing.
func TestWhatIsAddedToNullChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE goods (id INT PRIMARY KEY, n INT, state VARCHAR(9)) ENGINE=InnoDB;
INSERT INTO goods VALUES (1, NULL, NULL), (2, 0, NULL)`)
	f := w.parse("UPDATE goods SET state = 'x', n = n + :n WHERE id = :id; -- expect 1, else permanent")
	require.That(t, f.Joined(), "it is not joined: nothing is tried")
	h := New(f).(*handler)
	assert.OK(t, w.handle(h, messages(`{"id":2,"n":1}`, `{"id":2,"n":2}`, `{"id":1,"n":3}`)...))
	assert.Is(t, h.single.Load(), 0, "batches that are run message by message, because of a NULL that one adds to")
	w.exec("UPDATE goods SET state = 'y'")
	by := blamed(t, w.handle(h, messages(`{"id":1,"n":1}`, `{"id":1,"n":2}`, `{"id":2,"n":4}`)...))
	assert.That(t, len(by) == 1 && by[1] != nil, "blamed: %v, want message 1 alone", by)
}
