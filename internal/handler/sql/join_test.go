package sql

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given a table whose CHECK is a bound, or another condition, when two messages add to one row, then they are added up
// only below a bound, and what the CHECK refuses is refused either way.
func TestRunsAreAddedUpOnlyBelowBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
CREATE TABLE bound (id INT PRIMARY KEY, n INT NOT NULL, CHECK (n >= -5), CONSTRAINT most CHECK (n < 100)) ENGINE=InnoDB;
CREATE TABLE odd (id INT PRIMARY KEY, n INT NOT NULL CHECK (n MOD 2 = 0)) ENGINE=InnoDB;
INSERT INTO bound VALUES (1, 0); INSERT INTO odd VALUES (1, 0)`)
	for table, want := range map[string]bool{"bound": true, "odd": false} {
		f := w.parse("UPDATE " + table + " SET n = n + :n WHERE id = :id; -- expect 1, else permanent")
		p := f.plan.Load()
		if !p.joins() {
			t.Fatalf("statements on %s are not joined at all", table)
		}
		for _, s := range f.all {
			assert.Is(t, p.shapes[s].repeats, want, "runs on one row of %s are added up", table)
		}
		h := New(f)
		if err := w.handle(h, messages(`{"id":1,"n":4}`, `{"id":1,"n":2}`)...); err != nil {
			t.Errorf("%s: %v", table, err)
		}
		if err := w.handle(h, messages(`{"id":1,"n":1}`, `{"id":1,"n":99}`)...); err == nil {
			t.Errorf("%s took what its CHECK refuses", table)
		}
		w.want(table, "SELECT n FROM "+table, "6")
	}
}

// Given a row that has already what a joined statement writes, when it is written with others, then its message alone
// is blamed, as it would be by itself: nothing was changed.
func TestAJoinedRowThatStaysAsItIsWasNotChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `CREATE TABLE goods (id INT PRIMARY KEY, state VARCHAR(10) NOT NULL) ENGINE=InnoDB;
INSERT INTO goods VALUES (1, 'old'), (2, 'new'), (3, 'old')`)
	f := w.parse("UPDATE goods SET state = 'new' WHERE id = :id; -- expect 1, else permanent")
	if !f.Joined() {
		t.Fatal("it is not joined: nothing is tried")
	}
	h := New(f)
	by := blamed(t, w.handle(h, messages(`{"id":1}`, `{"id":2}`, `{"id":3}`)...))
	if len(by) != 1 || by[1] == nil {
		t.Errorf("blamed: %v, want message 1 alone", by)
	}
	assert.OK(t, w.handle(h, messages(`{"id":1}`, `{"id":3}`)...), "the others:")
}

// Only where joined statements must mean the same are they joined.
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
	const e = "; -- expect 1, else retry\n"
	for _, test := range []struct {
		text string
		want bool
	}{
		{"UPDATE goods SET amount = amount + :n WHERE id = :id" + e, true},
		{"UPDATE `goods` SET `amount` = `amount` - :n, n = n + 2, code = 'x', price = :p " +
			"WHERE code <> 'y' AND id = :id AND n IS NOT NULL AND price >= 3" + e, true},
		{"UPDATE goods SET code = UTC_TIMESTAMP(6) WHERE id = :id" + e, true},
		{"UPDATE places SET free = free + :n WHERE house = :h AND id = :id" + e, true},
		{"UPDATE places SET free = free + :n WHERE id = :id AND free > 0 AND house = :h" + e, true},
		{"UPDATE places SET free = free + :n WHERE house = 'x' AND id = :id" + e, false},
		{"UPDATE places SET free = free + :n WHERE house = :h AND id = :id AND free = :f" + e, true},
		{"UPDATE places SET free = free + :n WHERE id = :h AND id = :id" + e, false},
		{"INSERT INTO goods (id, code) VALUES (:id, -1)", true},
		{"INSERT INTO goods (id, code) VALUES (:id, JSON_OBJECT('id', :id, 'of', CONCAT('a', :n)))", true},
		{"INSERT INTO goods (id, code) VALUES (:id, CONCAT('a', UUID()))", false},
		{"UPDATE goods SET amount = amount + :n WHERE id = :id" + e + "UPDATE other SET amount = 1 WHERE id = :id" + e, true},
		{"UPDATE goods SET amount = amount + :n WHERE id = :id", false}, // any number of rows
		{"UPDATE goods SET amount = amount + :n WHERE id = :id; -- expect 0 or 1, else retry", false},
		{"UPDATE goods SET amount = amount + :n WHERE id = :id AND n = :m" + e, true},
		{"UPDATE goods SET amount = amount + :n WHERE id = :id AND price = :m" + e, false}, // compared as no text
		{"UPDATE goods SET amount = amount + :n WHERE id = :id OR n = 1" + e, false},
		{"UPDATE goods SET amount = amount + :n WHERE id = :id LIMIT 1" + e, false},
		{"UPDATE goods SET amount = amount + :n + :m WHERE id = :id" + e, false},
		{"UPDATE goods SET amount = n + :n WHERE id = :id" + e, false},
		{"UPDATE goods SET amount = 1, amount = amount + :n WHERE id = :id" + e, false},
		{"UPDATE goods SET amount = amount + RAND() WHERE id = :id" + e, false},
		{"UPDATE IGNORE goods SET amount = amount + :n WHERE id = :id" + e, false},
		{"UPDATE goods g SET amount = amount + :n WHERE id = :id" + e, false},
		{"UPDATE goods SET price = price + :n WHERE id = :id" + e, true},
		{"UPDATE goods SET code = code + :n WHERE id = :id" + e, false},       // sums may round
		{"UPDATE goods SET amount = amount + :n WHERE code = :id" + e, false}, // no unique index
		{"UPDATE goods SET id = :n WHERE id = :id" + e, false},                // writes a key
		{"UPDATE pairs SET c = 'x' WHERE a = :id" + e, false},                 // unique only with another
		{"UPDATE pairs SET a = 1 WHERE c = :id" + e, false},                   // unique only in a part
		{"UPDATE parent SET ref = ref + :n WHERE id = :id" + e, false},        // others refer to it
		{"UPDATE watched SET amount = amount + :n WHERE id = :id" + e, false},
		{"UPDATE seen SET amount = amount + :n WHERE id = :id" + e, false},
		{"INSERT IGNORE INTO goods (id) VALUES (:id)", false},
		{"INSERT INTO goods (id) VALUES (:id) ON DUPLICATE KEY UPDATE n = 1", false},
		{"INSERT INTO goods (id) VALUES (:id + 1)", false},
		{"INSERT INTO goods (id) SELECT id FROM other WHERE id = :id", false},
		{"SELECT id FROM goods WHERE id = :id" + e, true},
		{"SELECT *, 1 FROM goods WHERE id = :id AND n > 2 FOR UPDATE" + e +
			"UPDATE goods SET n = 1 WHERE id = :id" + e, true},
		{"SELECT id FROM goods WHERE id = :id" + e + "INSERT INTO goods (id) VALUES (:n)", false},
		{"SELECT a FROM pairs WHERE a = :a AND b = :b" + e, false}, // no column beside keys
		{"SELECT a FROM pairs WHERE a = :a" + e, false},            // may find several
		{"SELECT COUNT(*) FROM goods WHERE id = :id" + e, false},
		{"SELECT id FROM goods WHERE id = :id FOR UPDATE SKIP LOCKED" + e, false},
		{"SELECT id FROM goods WHERE id = :id", false}, // any number of rows
		{"DELETE FROM goods WHERE id = :id" + e, false},
		{"UPDATE goods SET n = 1 WHERE id = :a" + e + "UPDATE goods SET amount = 2 WHERE id = :b" + e, false},
		{"-- for each /items\nUPDATE goods SET n = 1 WHERE id = :a; -- expect 1, else retry\n" +
			"UPDATE other SET amount = 2 WHERE id = :b; -- expect 1, else permanent", false}, // which of the two comes first
	} {
		if f := w.parse(test.text); f.Joined() != test.want {
			t.Errorf("joined is %t, want %t: %s", f.Joined(), test.want, test.text)
		} else if not := f.Unjoined(); test.want != (len(not) == 0) {
			t.Errorf("why it is not joined: %+v: %s", not, test.text)
		}
	}
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
	if !slices.Equal(got, want) {
		t.Errorf("not joined because of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
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
