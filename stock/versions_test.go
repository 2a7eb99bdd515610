package stock_test

import (
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

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
	for text := range strings.SplitSeq(former, ";\n") {
		if strings.TrimSpace(text) != "" {
			w.exec(text)
		}
	}
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
func (w *world) formerlyRollback(order, key string) (released int, err error) {
	err = again(func() error {
		return w.tx(func(tx *gorm.DB) error {
			pool := tx.Statement.ConnPool
			rows, err := pool.QueryContext(w.t.Context(), formerLook, []byte(order))
			if err != nil {
				return err
			}
			var reserved []int64
			for rows.Next() {
				var sn string
				var sku, quantity, status int64
				if err := rows.Scan(&sn, &sku, &quantity, &status); err != nil {
					return err
				}
				if status == 1 {
					reserved = append(reserved, sku)
				}
			}
			if err := rows.Close(); err != nil || len(reserved) == 0 {
				return err
			}
			res, err := pool.ExecContext(w.t.Context(), formerRelease, "stock.rollback", key, []byte(order))
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil || int(n) != len(reserved) {
				return fmt.Errorf("%d rows changed, want %d: %w", n, len(reserved), err)
			}
			for _, sku := range reserved {
				if _, err := pool.ExecContext(w.t.Context(), formerRestock, 1, sku); err != nil {
					return err
				}
			}
			released = int(n)
			return nil
		})
	})
	return released, err
}

// formerlyWho is what the last release's explain and reconcile read of an order, as text.
func (w *world) formerlyWho(order string) string {
	w.t.Helper()
	rows := require.Get(w.db.QueryContext(w.t.Context(), formerWho, order))(w.t)
	var all []string
	for rows.Next() {
		var sn, tag, key string
		var sku, quantity, status int64
		require.OK(w.t, rows.Scan(&sn, &sku, &quantity, &status, &tag, &key))
		all = append(all, fmt.Sprintf("%d×%d %d %s/%s", sku, quantity, status, tag, key))
	}
	require.OK(w.t, rows.Err())
	require.OK(w.t, rows.Close())
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
	n := require.Get(w.formerlyRollback(before[2], "k"))(t)
	require.Is(t, n, 2, "rows released before the migration")
	w.migrate()
	after := []string{"former's, released by the former", "former's, released by this one",
		"this one's, released by the former", "this one's, released by this one"}
	w.formerlyReserve(after[0])
	w.formerlyReserve(after[1])
	require.OK(t, w.reserve(after[2], item(1, 1), item(2, 1)))
	require.OK(t, w.reserve(after[3], item(1, 1), item(2, 1)))

	for _, order := range append(before, after...) {
		if strings.HasSuffix(order, "by the former") {
			n := require.Get(w.formerlyRollback(order, "k"))(t)
			assert.Is(t, n, 2, "%s: rows released", order)
		} else {
			require.OK(t, w.rollback(stock.Options{}, message(order, "k")))
		}
		require.OK(t, w.rollback(stock.Options{}, message(order, "again", item(1, 1), item(2, 1))))
		assert.Is(t, require.Get(w.formerlyRollback(order, "again"))(t), 0, "%s: the former released again", order)
		w.wantReservations(order, "1×1 released stock.rollback/k, 2×1 released stock.rollback/k")
		assert.Is(t, w.formerlyWho(order), "1×1 2 stock.rollback/k, 2×1 2 stock.rollback/k", "%s: the former reads", order)
		found, err := stock.ReservationsOf(t.Context(), w.g, order)
		assert.That(t, err == nil && len(found) == 2 && found[0].Named && found[0].Key == "k" &&
			found[1].Tag == "stock.rollback", "%s: this one reads %+v, %v", order, found, err)
	}
	w.wantAll(100, 1, 2)
	w.wantReleases(2 * 7)
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

// Both versions at once, each with a message of its own for the same orders: every row is released by one of them.
func TestBothVersionsAtOnceReleaseOnce(t *testing.T) {
	t.Parallel()
	w := newFormerWorld(t)
	const orders = 40
	name := func(i int) string { return fmt.Sprintf("order-%02d", i) }
	for i := range orders / 2 {
		w.formerlyReserve(name(i))
	}
	w.migrate()
	for i := range orders / 2 {
		require.OK(t, w.reserve(name(orders/2+i), item(1, 1), item(2, 1)))
	}
	for i := range orders {
		that, this := atOnce(func() error { _, err := w.formerlyRollback(name(i), "former"); return err },
			func() error { return w.rollback(stock.Options{}, message(name(i), "this")) })
		require.OK(t, this)
		require.OK(t, that)
		got := w.reservations(name(i))
		if strings.Count(got, "released stock.rollback/former")%2+strings.Count(got, "released stock.rollback/this")%2 != 0 ||
			strings.Contains(got, "reserved") {
			t.Errorf("%s: %s; want it released by one of the two", name(i), got)
		}
	}
	w.wantAll(100, 1, 2)
	w.wantReleases(2 * orders)
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
