package stock_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

// former are the statements that made the tables of the last release without room.
const former = "testdata/former.sql"

// withStock is what a service migrates that has both log and stock in a schema.
func withStock() dedup.MigrateOptions {
	return dedup.MigrateOptions{
		Table: "consumer_log", Extra: []dedup.MigrationSet{{Name: stock.MigrationSet, Files: stock.Migrations()}},
	}
}

// schema is all that the server tells of the tables, and the versions without their time.
func (w *world) schema() map[string]string {
	w.t.Helper()
	all := map[string]string{"versions": strings.Join(w.versions("CONCAT_WS(' ', set_name, version, oldest)"), "\n")}
	for _, table := range stack.RowsOf(w.t, w.db, "SELECT table_name AS name FROM information_schema.tables WHERE "+
		"table_schema = DATABASE()") {
		shown := stack.RowsOf(w.t, w.db, "SHOW CREATE TABLE `"+table["name"]+"`")[0]
		all[table["name"]] = shown["Create Table"] + shown["Create View"]
	}
	return all
}

// versions are sorted.
func (w *world) versions(what string) (all []string) {
	w.t.Helper()
	for _, row := range stack.RowsOf(w.t, w.db, "SELECT "+what+" AS v FROM rollbackd_schema") {
		all = append(all, row["v"])
	}
	slices.Sort(all)
	return all
}

// The log's package made the tables of stock once. A database of that time is this program's too: what is applied is
// known, what is left is applied, and a new one is made like it, down to the version table.
func TestADatabaseOfTheFormerProgramGetsWhatCameSince(t *testing.T) {
	old := newEmptyWorld(t)
	stack.Script(t, old.db, former)
	const ofFormer = "CONCAT_WS(' ', set_name, version, oldest, " +
		"IF(set_name = 'stock' AND version > 1 OR set_name LIKE 'log:%' AND version > 3, '', applied_at))"
	want := old.versions(ofFormer)

	steps, err := dedup.MigrationStatus(t.Context(), old.g, withStock())
	require.That(t, err == nil && len(steps) == 8, "status: %d steps, %v, want 8", len(steps), err)
	for i, want := range []string{"log/0004_desk.sql false", "log/0005_due.sql false", "log/0006_minute.sql false",
		"stock/0001_stock.sql true", "stock/0002_room.sql false"} {
		s := steps[3+i]
		assert.That(t, fmt.Sprint(s.Set, "/", s.Name, " ", s.Applied) == want, "step %d is %+v, want %s", 3+i, s, want)
	}
	old.migrate()
	want = append(want, "log:consumer_log 4 1 ", "log:consumer_log 5 1 ", "log:consumer_log 6 1 ", "stock 2 1 ")
	slices.Sort(want)
	assert.Equal(t, old.versions(ofFormer), want, "versions")

	fresh := newEmptyWorld(t)
	fresh.migrate()
	d := cmp.Diff(old.schema(), fresh.schema())
	assert.That(t, d == "", "a new schema differs from one of the former program (-former +new):\n%s", d)
}

// A migration that dies between a step and the note that it is applied runs the step again.
func TestEveryStepMayBeRepeated(t *testing.T) {
	w := newWorld(t)
	before := w.schema()
	w.exec("DELETE FROM rollbackd_schema WHERE set_name = 'stock' AND version > 0")
	w.migrate()
	d := cmp.Diff(before, w.schema())
	assert.That(t, d == "", "the second time changed the schema (-before +after):\n%s", d)
}

func TestStockTablesKeepTheirPromises(t *testing.T) {
	w := newWorld(t)
	w.exec("INSERT INTO stock (sku_id, amount) VALUES (9223372036854775807, 1)")
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status)" +
		" VALUES ('a', 1, 1000000000, 1), ('A', 1, 1, 2), ('a ', 1, 1, 3), ('á', 1, 0, 4)")
	for _, text := range []string{
		"UPDATE stock SET amount = amount - 2",
		"UPDATE stock_reservation SET quantity = -1",
		"UPDATE stock_reservation SET status = 5",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 1, 1)",
		"INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (REPEAT('o', 65), 1, 1, 1)",
	} {
		_, err := w.db.ExecContext(t.Context(), text)
		assert.That(t, mysqldb.Classify(err) == mysqldb.FaultData, "%s = %v, want it refused", text, err)
	}
}

// What the last release without room sent to the database, word for word but for the values: daemons and services of it
// go on while a fleet is replaced one by one.
const (
	formerReserve = "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES " +
		"(?,?,?,1,UTC_TIMESTAMP(6))"
	formerLook = "SELECT order_sn, sku_id, quantity, status FROM stock_reservation FORCE INDEX (PRIMARY) WHERE order_sn " +
		"IN (?) ORDER BY order_sn, sku_id FOR UPDATE"
	formerRelease = "UPDATE stock_reservation FORCE INDEX (PRIMARY) SET status=2, rollback_tag=?, rollback_key=?, " +
		"updated_at=UTC_TIMESTAMP(6) WHERE status=1 AND order_sn IN (?)"
	formerRefusal = "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, rollback_tag, rollback_key, " +
		"updated_at) VALUES (?,?,?,4,?,?,UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE sku_id = stock_reservation.sku_id"
	formerRestock = "UPDATE stock FORCE INDEX (PRIMARY) SET amount=amount+?, version=version+1 WHERE sku_id IN (?) AND " +
		"amount<=4611686018427387904"
	formerWho = "SELECT order_sn, sku_id, quantity, status, rollback_tag, rollback_key FROM stock_reservation FORCE " +
		"INDEX (PRIMARY) WHERE order_sn = ? ORDER BY sku_id"
)

// newFormerWorld is a database as the last release without room left it, with 100 pieces of the goods 1 and 2.
func newFormerWorld(t *testing.T) *world {
	t.Helper()
	w := newEmptyWorld(t)
	stack.Script(t, w.db, former)
	for _, statement := range audit {
		w.exec(statement)
	}
	w.goods(100, 1, 2)
	return w
}

// formerly reserves one piece of the goods 1 and 2 each as the last release did.
func (w *world) formerlyReserve(order string) {
	w.t.Helper()
	for sku := 1; sku <= 2; sku++ {
		w.exec(formerReserve, order, sku, 1)
		w.exec("UPDATE stock SET amount = amount - 1, version = version + 1 WHERE sku_id = ? AND amount >= 1", sku)
	}
}

// formerlyRollback gives back what the order still has reserved, as the last release did, and says how many rows that
// were.
func (w *world) formerlyRollback(order, key string) (released int64) {
	w.t.Helper()
	tx := require.Get(w.db.BeginTx(w.t.Context(), nil))(w.t)
	var skus []string
	for _, r := range stack.RowsOf(w.t, tx, formerLook, []byte(order)) {
		if r["status"] == "1" {
			skus = append(skus, r["sku_id"])
		}
	}
	if len(skus) > 0 {
		res := require.Get(tx.ExecContext(w.t.Context(), formerRelease, "stock.rollback", key, []byte(order)))(w.t)
		released = require.Get(res.RowsAffected())(w.t)
	}
	for _, sku := range skus {
		stack.Exec(w.t, tx, formerRestock, 1, sku)
	}
	require.OK(w.t, tx.Commit())
	return released
}

// formerlyWho is what the last release's explain and reconcile read of an order, as text.
func (w *world) formerlyWho(order string) string {
	w.t.Helper()
	var all []string
	for _, r := range stack.RowsOf(w.t, w.db, formerWho, order) {
		all = append(all, r["sku_id"]+"×"+r["quantity"]+" "+r["status"]+" "+r["rollback_tag"]+"/"+r["rollback_key"])
	}
	return strings.Join(all, ", ")
}

// Given reservations made before the migration, and after it by both versions, when either version releases them, then
// the other finds them released, by whom, and releases nothing again.
func TestBothVersionsSeeWhatTheOtherReleased(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t)
	before := []string{"before, released by the former", "before, released by this one", "before, released before"}
	for _, order := range before {
		w.formerlyReserve(order)
	}
	require.Is(t, w.formerlyRollback(before[2], "k"), 2, "rows released before the migration")
	w.migrate()
	after := []string{"former's, released by the former", "former's, released by this one",
		"this one's, released by the former", "this one's, released by this one"}
	w.formerlyReserve(after[0])
	w.formerlyReserve(after[1])
	require.OK(t, w.reserve(after[2], item(1, 1), item(2, 1)))
	require.OK(t, w.reserve(after[3], item(1, 1), item(2, 1)))

	for _, order := range append(before, after...) {
		if strings.HasSuffix(order, "by the former") {
			assert.Is(t, w.formerlyRollback(order, "k"), 2, "%s: rows released", order)
		} else {
			require.OK(t, w.rollback(stock.Options{}, message(order, "k")))
		}
		require.OK(t, w.rollback(stock.Options{}, message(order, "again", item(1, 1), item(2, 1))))
		assert.Is(t, w.formerlyRollback(order, "again"), 0, "%s: the former released again", order)
		w.wantReservations(order, "1×1 released stock.rollback/k, 2×1 released stock.rollback/k")
		assert.Is(t, w.formerlyWho(order), "1×1 2 stock.rollback/k, 2×1 2 stock.rollback/k", "%s: the former reads", order)
		found, err := stock.ReservationsOf(t.Context(), w.g, order)
		assert.That(t, err == nil && len(found) == 2 && found[0].Named && found[0].Key == "k" &&
			found[1].Tag == "stock.rollback", "%s: this one reads %+v, %v", order, found, err)
	}
	w.play("left 100 100", "released 14")
}

func TestBothVersionsRefuseWhatTheOtherRefused(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t)
	w.exec(formerRefusal, "before", 1, 1, "stock.rollback", "k")
	w.migrate()
	w.exec(formerRefusal, "former", 1, 1, "stock.rollback", "k")
	require.OK(t, w.rollback(refuse, message("this", "k", item(1, 1))))
	for _, order := range []string{"before", "former", "this"} {
		assert.Error(t, w.reserve(order, item(1, 1)), stock.ErrRefused, "%s: reserve", order)
		_, err := w.db.ExecContext(t.Context(), formerReserve, order, 1, 1)
		assert.That(t, mysqlNumber(err) == 1062, "%s: the former's reserve: %v, want error 1062", order, err)
		assert.Is(t, w.formerlyWho(order), "1×1 4 stock.rollback/k", "%s: the former reads", order)
	}
	w.wantAmount(1, 100)
}

// Given tables that nobody has migrated yet, a Rollback says so and changes nothing, and what services of this version
// do besides works.
func TestARollbackBeforeItsMigrationSaysWhatToRun(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t)
	require.OK(t, w.reserve("a", item(1, 1)))
	require.OK(t, w.reserve("b", item(1, 1)))
	require.OK(t, w.confirm("b"))
	for _, r := range []stock.Request{message("a", "k"), message("refused", "k", item(1, 1))} {
		if err := w.rollback(refuse, r); !is(err, stock.ErrTables) || mysqlNumber(err) != 1054 {
			t.Errorf("%s: %v, want ErrTables and the server's word", r.OrderSN, err)
		}
	}
	w.wantReservations("a", "1×1 reserved")
	w.migrate()
	require.OK(t, w.rollback(refuse, message("a", "k"), message("refused", "k", item(1, 1))))
	w.wantAmount(1, 99)
}

// The names of the message take the place of a row's room, so that it need not be moved. Where they do not fit, the
// room stays: a row that grows by a few bytes costs more than one that grows by all of them.
func TestAReleaseTakesTheRoomOfItsRow(t *testing.T) {
	w := newWorld(t, 1, 2)
	const size = "SELECT LENGTH(room), LENGTH(room) + COALESCE(1 + LENGTH(rollback_tag), 0) + COALESCE(1 + " +
		"LENGTH(rollback_key), 0) FROM stock_reservation WHERE order_sn = ? AND sku_id = 1"
	sizes := func(order string) (room, all int) {
		t.Helper()
		require.OK(t, w.db.QueryRowContext(t.Context(), size, order).Scan(&room, &all))
		return room, all
	}
	require.OK(t, w.reserve("reserved", item(1, 1)))
	had, _ := sizes("reserved")
	fits := had - 2 - len("stock.rollback")
	var requests []stock.Request
	for _, key := range []int{1, len("9f1c2a4e-6f0b-4d7a-8c3e-0123456789ab"), fits, fits + 1, 255} {
		order := fmt.Sprintf("key of %d", key)
		require.OK(t, w.reserve(order, item(1, 1), item(2, 1)))
		requests = append(requests, message(order, strings.Repeat("k", key), item(1, 1)))
	}
	require.OK(t, w.rollback(stock.Options{}, requests...)) // row by row
	for _, r := range requests {
		room, all := sizes(r.OrderSN)
		if fit := len(r.Key) <= fits; fit != (room == 0) || fit != (all <= had) || !fit && room != had {
			t.Errorf("%s: of a room of %d bytes %d are left, and the names take the row to %d", r.OrderSN, had, room, all)
		}
	}
	require.OK(t, w.rollback(refuse, message("refused", "k", item(1, 1))))
	room, _ := sizes("refused")
	assert.That(t, room == 0, "a refusal has %d bytes of room, want none: nothing is ever written into it", room)
	// A shop that wants no room has rows as they were.
	w.exec("ALTER TABLE stock_reservation ALTER COLUMN room SET DEFAULT ''")
	require.OK(t, w.reserve("without", item(1, 1)))
	require.OK(t, w.rollback(stock.Options{}, message("without", "k")))
	w.wantReservations("without", "1×1 released stock.rollback/k")
}
