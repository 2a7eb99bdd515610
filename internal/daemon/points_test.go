package daemon_test

import (
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given ten daemons on one queue, when every message is published five times, then every one takes effect once and all
// other copies are absorbed.
func TestTenDaemonsAndFiveCopiesOfEverything(t *testing.T) {
	t.Parallel()
	messages := sized(400, 20_000)
	w := newWorld(t, "LANES", "2", "BATCH_SIZE", "100")
	orders := w.open(messages)
	var sent []oracle.Sent
	for range 5 {
		sent = append(sent, w.route.Rollbacks(orders)...)
	}
	w.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	var all []*program.Process
	for range 10 {
		all = append(all, w.start())
	}
	w.publish(sent...)
	w.ended(messages)
	w.stop(all...)
	is(w, "copies absorbed", w.judged(messages, 0, oracle.Allowance{}).DuplicatesAbsorbed, 4*messages)
}

// Given a schema that is dropped and made again, when the same messages come again and Redis still remembers them as
// done, then all are applied: no mark of the old schema suppresses anything.
func TestNewSchemaIsNotHeldToTheOldOnesMarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	orders := w.open(200)
	w.publish(w.route.Rollbacks(orders)...)
	w.finish(len(orders), 0, oracle.Allowance{})

	var tables []string
	for name, kind := range w.pairs("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = " +
		"DATABASE()") {
		drop := "DROP TABLE `"
		if strings.Contains(kind, "VIEW") {
			drop = "DROP VIEW `"
		}
		tables = append(tables, drop+name+"`")
	}
	for _, drop := range tables {
		w.exec(drop)
	}
	w.migrate()
	ok(t, shop.Stock(t.Context(), w.db, skus, 10_000_000))
	ok(t, shop.SeedReserved(t.Context(), w.db, orders))
	w.remember()
	w.publish(w.route.Rollbacks(orders)...)
	w.finish(len(orders), 0, oracle.Allowance{})
}
