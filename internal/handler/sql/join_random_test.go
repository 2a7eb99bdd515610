package sql

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

const randomTables = `CREATE TABLE tb_order (
	sn VARCHAR(20) PRIMARY KEY, state VARCHAR(20) NOT NULL, closed_by VARCHAR(20)) ENGINE=InnoDB;
CREATE TABLE goods (id INT PRIMARY KEY, amount DECIMAL(9,2) UNSIGNED NOT NULL, version INT NOT NULL) ENGINE=InnoDB;
CREATE TABLE places (house CHAR(3), id INT, free INT NOT NULL CHECK (free < 40), PRIMARY KEY (house, id)) ENGINE=InnoDB;
CREATE TABLE coupon (code VARCHAR(20) PRIMARY KEY, n INT NOT NULL, used_by VARCHAR(20)) ENGINE=InnoDB;
CREATE TABLE entry (sn VARCHAR(20), id INT, pieces INT) ENGINE=InnoDB`

// What a random file is made of: of each line one or none.
var (
	randomGuards = []string{
		"UPDATE tb_order SET state = 'closed' WHERE sn = :sn AND state = 'open'; -- expect 1, else %s",
		"UPDATE tb_order SET state = 'closed', closed_by = :rollbackd_key WHERE sn = :sn AND state = 'open'; " +
			"-- expect 1, else %s",
		"SELECT * FROM tb_order WHERE sn = :sn AND state = 'open' FOR UPDATE; -- expect 1, else %s",
		"SELECT state FROM tb_order WHERE sn = :sn; -- expect 1 or more, else %[1]s\n" +
			"UPDATE tb_order SET state = 'closed' WHERE sn = :sn AND state = 'open'; -- expect 1, else %[1]s",
	}
	randomItems = [][]string{
		{
			"UPDATE goods SET amount = amount + :n, version = version + 1 WHERE id = :id; -- expect 1, else %s",
			"UPDATE goods SET amount = amount + :n WHERE id = :id AND version < 3; -- expect 1, else %s: other goods",
			"UPDATE goods SET version = :n WHERE id = :id; -- expect 1, else %s",
			"UPDATE goods SET amount = amount + :money WHERE id = :id; -- expect 1, else %s",
			"SELECT id FROM goods WHERE id = :id; -- expect 1, else %s",
		},
		{
			"UPDATE places SET free = free + :n WHERE house = :house AND id = :id; -- expect 1, else %s",
			"UPDATE places SET free = free - :n WHERE id = :id AND house = :house; -- expect 1, else %s: no such place",
		},
		{"INSERT INTO entry (sn, id, pieces) VALUES (:sn, :id, :n)"},
		{
			"UPDATE coupon SET n = n + :n WHERE code = :code; -- expect 1, else %s",
			"UPDATE coupon SET used_by = NULL WHERE code = :code AND used_by IS NOT NULL; -- expect 1, else %s",
			"UPDATE coupon SET n = n + 1, used_by = :sn WHERE code = :code; -- expect 1, else %s",
			"UPDATE coupon SET used_by = NULL WHERE code = :code AND used_by = :by; -- expect 1, else %s",
		},
	}
)

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// randomFile is a file with a guard or none, and lists of items with some of the statements, in any order. Two
// statements under one list change places when they are joined, so that an item may be blamed for the other of them:
// exact says that there are none such.
func randomFile(rng *rand.Rand) (text string, exact bool) {
	exact = true
	var b strings.Builder
	if rng.IntN(4) > 0 {
		fmt.Fprintf(&b, pick(rng, randomGuards...)+"\n", pick(rng, "done", "retry", "permanent"))
	}
	verdict := pick(rng, "retry", "permanent")
	list := ""
	for _, i := range rng.Perm(len(randomItems))[:1+rng.IntN(len(randomItems))] {
		if list == "" || rng.IntN(2) == 0 {
			list = "-- for each " + pick(rng, "/items", "/others") + "\n"
			b.WriteString(list)
		} else {
			exact = false
		}
		text := pick(rng, randomItems[i]...)
		if strings.Contains(text, "%s") {
			text = fmt.Sprintf(text, verdict)
		}
		b.WriteString(strings.TrimSuffix(text, ";") + pick(rng, "\n", "\n\n"))
		if !strings.Contains(text, ";") {
			b.WriteString(";\n")
		}
	}
	if strings.Contains(b.String(), " FOR UPDATE") {
		b.WriteString("-- once\nUPDATE tb_order SET closed_by = :rollbackd_key WHERE sn = :sn; -- expect 1, else permanent\n")
	}
	return b.String(), exact
}

// randomBody is a message about an order that may be there, with items of which few are not as they should be.
func randomBody(rng *rand.Rand) string {
	list := func() string {
		var items []string
		for range rng.IntN(4) {
			id, n := 1+rng.IntN(4), 1+rng.IntN(3)
			switch rng.IntN(80) {
			case 0:
				id = 99
			case 1:
				n = 0
			}
			items = append(items, fmt.Sprintf(`{"id":%d,"n":%d,"money":%d.%d,"by":%q,"house":%q,"code":%q}`, id, n, n,
				rng.IntN(30), pick(rng, "a", "b", "B"),
				pick(rng, "BER", "HAM", "BER", "HAM", "ber", "X"), pick(rng, "winter", "spring", "autumn", "Winter", "none")))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return fmt.Sprintf(`{"sn":"o%d","items":%s,"others":%s}`, rng.IntN(45), list(), list())
}

func (w *world) fillRandom() {
	w.t.Helper()
	for _, table := range []string{"tb_order", "goods", "places", "coupon", "entry"} {
		w.exec("DELETE FROM " + table)
	}
	var orders []string
	for i := range 40 {
		orders = append(orders, fmt.Sprintf("('o%d','%s',NULL)", i, []string{"open", "open", "open", "closed"}[i%4]))
	}
	w.exec("INSERT INTO tb_order VALUES " + strings.Join(orders, ","))
	w.exec("INSERT INTO goods VALUES (1,0,0),(2,5,1),(3,0,2),(4,7,3)")
	w.exec("INSERT INTO places VALUES ('BER',1,0),('BER',2,9),('BER',3,0),('BER',4,0),('HAM',1,1),('HAM',2,0),('HAM',3,0)")
	w.exec("INSERT INTO coupon VALUES ('winter',0,'a'),('spring',0,NULL),('autumn',3,'b')")
}

// Given random files and random batches, with rows under keys of one and of two columns, of numbers and of text whose
// collation knows no capitals, when they are handled by joined statements, then rows and blame are the same as message
// by message.
func TestRandomFilesMeanTheSameWhenJoined(t *testing.T) {
	t.Parallel()
	w := newWorld(t, randomTables)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	files, joins, undone, failing := 0, 0, 0, 0
	for range 60 {
		text, exact := randomFile(rng)
		single, err := Parse("handler.sql", text) // not checked: it has no plan
		require.That(t, err == nil, "%v\n%s", err, text)
		joined := w.parse(text)
		if !joined.Joined() {
			continue
		}
		files++
		bodies := make([]string, 2+rng.IntN(14))
		for i := range bodies {
			bodies[i] = randomBody(rng)
		}
		var states, blames []string
		for _, f := range []*File{single, joined} {
			w.fillRandom()
			h := New(f).(*handler)
			said := w.untilDone(h, messages(bodies...), exact)
			if failing += len(said); f == joined {
				if h.single.Load() == 0 {
					joins++
				} else {
					undone++
				}
			}
			slices.Sort(said)
			blames = append(blames, strings.Join(said, ""))
			states = append(states, w.show("SELECT * FROM tb_order ORDER BY 1")+w.show("SELECT * FROM goods ORDER BY 1")+
				w.show("SELECT * FROM places ORDER BY 1, 2")+w.show("SELECT * FROM coupon ORDER BY 1")+
				w.show("SELECT * FROM entry ORDER BY 1, 2, 3"))
		}
		require.That(t, states[0] == states[1] && blames[0] == blames[1], "of\n%s\n%s\nsingle\n%s%s\njoined\n%s%s", text,
			strings.Join(bodies, "\n"), blames[0], states[0], blames[1], states[1])
	}
	t.Logf("%d files were joined, %d batches to their ends, %d not; %d times somebody was blamed", files, joins, undone,
		failing)
	assert.That(t, files >= 10 && joins >= 5 && failing > 0, "%d files, %d batches, %d blamed: the test looks at nothing",
		files, joins, failing)
}

// untilDone hands messages to h and takes those out that it blames, as the engine does, until the others are applied.
// An error without blame halves them. What was said of the blamed is told in full only if exact.
func (w *world) untilDone(h consumer.Handler, msgs []consumer.Message, exact bool) (said []string) {
	w.t.Helper()
	if len(msgs) == 0 {
		return nil
	}
	err := w.handle(h, msgs...)
	if err == nil {
		return nil
	}
	by, half := blamed(w.t, err), len(msgs)/2
	if len(by) == 0 {
		return append(w.untilDone(h, msgs[:half], exact), w.untilDone(h, msgs[half:], exact)...)
	}
	var others []consumer.Message
	for i, m := range msgs {
		switch why := by[i]; {
		case why == nil:
			others = append(others, m)
		case exact:
			said = append(said, fmt.Sprintln(m.Key, consumer.IsPermanent(why), why))
		default:
			said = append(said, fmt.Sprintln(m.Key, consumer.IsPermanent(why)))
		}
	}
	return append(said, w.untilDone(h, others, exact)...)
}
