package daemon_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given work of every kind, when the process kills itself with SIGKILL at a point of a message's life, then the next
// process finishes everything: what is in order is applied once, what is hopeless is a dead letter.
func TestProcessKilledAtAnyPointLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, point := range []consumer.Point{
		consumer.PointClaimed, consumer.PointEffect, consumer.PointCommitted, consumer.PointFailed,
		consumer.PointRetryCopy, consumer.PointLetter, consumer.PointDead, consumer.PointAcked,
	} {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "LOCK_TTL", "1s", "LEASE", "4s", "HANDLER_TIMEOUT", "2s", "LANES", "2", "BATCH_SIZE", "50",
				"MAX_ATTEMPTS", "3", "RETRY_DELAYS", "100ms,200ms")
			orders := w.open(110)
			sent := w.route.Rollbacks(orders[:100])
			for _, o := range orders[100:] { // each dies in its own way: at once, at its first attempt, after its last
				sent = append(sent, badRollbacks(w.route, []shop.Order{o})...)
				unknown := w.route.Message("unknown-"+o.SN, []byte(goodBody))
				sent = append(sent, oracle.Sent{Publishing: unknown, Fate: dies(point)})
			}
			w.mixed(sent)

			w.exits(w.child(crashEnv+"="+string(point)), killed, 30*time.Second)
			w.finish(100, 30, oracle.Allowance{Attempts: 2})
		})
	}
}

// dies is open where the kill may take the last attempt of a message: it is "crashed" then, else "exhausted".
func dies(point consumer.Point) oracle.Fate {
	if point == consumer.PointClaimed || point == consumer.PointEffect {
		return oracle.Fate{}
	}
	return oracle.ToDie(dedup.ReasonExhausted)
}

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
