package stock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

func TestMain(m *testing.M) { stack.Main(m) }

// audit keeps every row that a statement on the reservations changed.
var audit = []string{
	`CREATE TABLE audit (
		id BIGINT AUTO_INCREMENT PRIMARY KEY, order_sn VARBINARY(64), sku_id BIGINT, was TINYINT, is_now TINYINT
	) ENGINE=InnoDB`,
	`CREATE TRIGGER audit_changes AFTER UPDATE ON stock_reservation FOR EACH ROW
		INSERT INTO audit (order_sn, sku_id, was, is_now) VALUES (NEW.order_sn, NEW.sku_id, OLD.status, NEW.status)`,
}

// world is a fresh database with both tables.
type world struct {
	t  *testing.T
	db *sql.DB
	g  *gorm.DB
}

// newWorld has these goods, a hundred pieces of each; its test runs beside others.
func newWorld(t *testing.T, skus ...int64) *world {
	t.Helper()
	t.Parallel()
	w := newEmptyWorld(t)
	w.migrate()
	for _, statement := range audit {
		w.exec(statement)
	}
	w.goods(100, skus...)
	return w
}

// newEmptyWorld has no tables yet.
func newEmptyWorld(t *testing.T) *world {
	t.Helper()
	db := require.Get(sql.Open("mysql", stack.MySQL(t)))(t)
	t.Cleanup(func() { _ = db.Close() })
	g := require.Get(gorm.Open(gormmysql.New(gormmysql.Config{Conn: db}), &gorm.Config{
		SkipDefaultTransaction: true, Logger: logger.Discard,
	}))(t)
	return &world{t: t, db: db, g: g}
}

func (w *world) migrate() {
	w.t.Helper()
	require.OK(w.t, dedup.Migrate(w.t.Context(), w.g, withStock()))
}

// exec runs a statement that must succeed.
func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	stack.Exec(w.t, w.db, statement, args...)
}

// tx runs f in a transaction of its own and commits when it returns nil.
func (w *world) tx(f func(tx *gorm.DB) error) error {
	return w.g.WithContext(w.t.Context()).Transaction(f, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
}

func (w *world) rollback(o stock.Options, requests ...stock.Request) error {
	return w.tx(func(tx *gorm.DB) error { return stock.Rollback(w.t.Context(), tx, requests, o) })
}

func (w *world) reserve(order string, items ...stock.Item) error {
	return w.tx(func(tx *gorm.DB) error { return stock.Reserve(w.t.Context(), tx, order, items) })
}

func (w *world) confirm(order string) error {
	return w.tx(func(tx *gorm.DB) error { return stock.Confirm(w.t.Context(), tx, order) })
}

// goods puts amount pieces of each sku on stock.
func (w *world) goods(amount int64, skus ...int64) {
	w.t.Helper()
	for _, sku := range skus {
		w.exec("INSERT INTO stock (sku_id, amount, version) VALUES (?, ?, 0)", sku, amount)
	}
}

// reservations are an order's rows as text: sku×quantity status (tag/key), or nothing.
func (w *world) reservations(order string) string {
	w.t.Helper()
	var all []string
	for _, r := range stack.RowsOf(w.t, w.db, `SELECT sku_id, quantity, ELT(status, 'reserved', 'released', 'deducted',
		'refused') AS state, rollback_tag, rollback_key FROM stock_reservation WHERE order_sn = ? ORDER BY sku_id`, order) {
		text := r["sku_id"] + "×" + r["quantity"] + " " + r["state"]
		if r["rollback_tag"]+r["rollback_key"] != "" {
			text += " " + r["rollback_tag"] + "/" + r["rollback_key"]
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (w *world) wantReservations(order, want string) {
	w.t.Helper()
	assert.Is(w.t, w.reservations(order), want, "reservations of %s", order)
}

// wantReleases compares how many rows were released in all.
func (w *world) wantReleases(want int) {
	w.t.Helper()
	const seen = "SELECT CONCAT_WS(' ', COUNT(*), SUM(was <> 1)) FROM audit WHERE is_now = 2"
	assert.Is(w.t, stack.One[string](w.t, w.db, seen), fmt.Sprint(want, " 0"), "rows released, not reserved before")
}

// wantAll compares the amounts of goods.
func (w *world) wantAll(want int64, skus ...int64) {
	w.t.Helper()
	for _, sku := range skus {
		w.wantAmount(sku, want)
	}
}

func (w *world) wantAmount(sku, want int64) {
	w.t.Helper()
	got := stack.One[int64](w.t, w.db, "SELECT amount FROM stock WHERE sku_id = ?", sku)
	assert.Is(w.t, got, want, "amount of %d", sku)
}

// message is a request of one order under a key of its own.
func message(order, key string, items ...stock.Item) stock.Request {
	return stock.Request{OrderSN: order, Items: items, Tag: "stock.rollback", Key: key}
}

func item(sku, quantity int64) stock.Item { return stock.Item{SKU: sku, Quantity: quantity} }

// wantBlame holds err against the requests to blame: index to sentinel.
func wantBlame(t *testing.T, err error, want map[int]error) {
	t.Helper()
	blame, ok := errors.AsType[*stock.BatchError](err)
	require.That(t, ok, "error is %v, want a BatchError", err)
	assert.That(t, len(blame.Requests) == len(want), "%d requests blamed, want %d: %v", len(blame.Requests), len(want),
		err)
	assert.That(t, slices.IsSortedFunc(blame.Requests, func(a, b stock.RequestError) int { return a.Index - b.Index }),
		"requests are not in order of index: %v", blame.Requests)
	for _, r := range blame.Requests {
		assert.Error(t, r.Err, want[r.Index], "request %d", r.Index)
		later := errors.Is(r.Err, stock.ErrNoReservation) || errors.Is(r.Err, stock.ErrUnknownSKU) ||
			errors.Is(r.Err, stock.ErrOverflow)
		assert.That(t, r.Permanent != later, "request %d: permanent is %v with %v", r.Index, r.Permanent, r.Err)
		assert.Error(t, err, want[r.Index], "the batch's error does not unwrap to")
	}
}

func is(err, want error) bool { return errors.Is(err, want) }

// mysqlNumber is the number of the server's error in err, 0 without one.
func mysqlNumber(err error) uint16 {
	if e, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return e.Number
	}
	return 0
}

// unrelated are orders of nobody who is asked about.
func unrelated(n int) []stock.Request {
	all := make([]stock.Request, n)
	for i := range all {
		all[i] = message(fmt.Sprintf("2025%08d", i), "", item(1_000_000, 1))
	}
	return all
}

// fill makes the reservations that requests roll back.
func fill(w *world, requests []stock.Request) {
	w.t.Helper()
	var values []string
	for _, r := range requests {
		for _, it := range r.Items {
			values = append(values, fmt.Sprintf("('%s',%d,%d,1,UTC_TIMESTAMP(6))", r.OrderSN, it.SKU, it.Quantity))
		}
	}
	for some := range slices.Chunk(values, 1000) {
		w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES " +
			strings.Join(some, ","))
	}
}
