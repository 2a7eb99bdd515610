package stock_test

import (
	"context"
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
	"github.com/rollbackd/rollbackd/internal/test/must"
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
	t   *testing.T
	dsn string
	db  *sql.DB
	g   *gorm.DB
}

// newWorld has these goods, a hundred pieces of each; its test runs beside others.
func newWorld(t *testing.T, skus ...int64) *world {
	t.Helper()
	t.Parallel()
	w := newEmptyWorld(t)
	stack.Tables(t, w.dsn, "stock", w.migrate)
	for _, statement := range audit {
		w.exec(statement)
	}
	w.goods(100, skus...)
	return w
}

// newEmptyWorld has no tables yet.
func newEmptyWorld(t *testing.T) *world {
	t.Helper()
	dsn := stack.MySQL(t)
	db := require.Get(sql.Open("mysql", dsn))(t)
	t.Cleanup(func() { _ = db.Close() })
	g := require.Get(gorm.Open(gormmysql.New(gormmysql.Config{Conn: db}), &gorm.Config{
		SkipDefaultTransaction: true, Logger: logger.Discard,
	}))(t)
	return &world{t, dsn, db, g}
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
	var rows []string
	for _, sku := range skus {
		rows = append(rows, fmt.Sprintf("(%d,%d,0)", sku, amount))
	}
	if len(rows) > 0 {
		w.exec("INSERT INTO stock (sku_id, amount, version) VALUES " + strings.Join(rows, ","))
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

// hooked calls before ahead of each statement that runs through it.
type hooked struct {
	gorm.ConnPool
	before func(statement string)
}

func (h hooked) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	h.before(query)
	return h.ConnPool.ExecContext(ctx, query, args...)
}

func (h hooked) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	h.before(query)
	return h.ConnPool.QueryContext(ctx, query, args...)
}

// hook runs f in a transaction and calls before ahead of each of its statements.
func (w *world) hook(before func(statement string), f func(tx *gorm.DB) error) error {
	return w.tx(func(tx *gorm.DB) error {
		bound := tx.Session(&gorm.Session{NewDB: true, Context: w.t.Context()}) // a context makes the statement its own
		bound.Statement.ConnPool = hooked{tx.Statement.ConnPool, before}
		return f(bound)
	})
}

// hookedRollback rolls back with another act committed just ahead of its first statement that begins so.
func (w *world) hookedRollback(o stock.Options, begins string, other func(), requests ...stock.Request) error {
	w.t.Helper()
	hit := false
	err := w.hook(func(statement string) {
		if !hit && strings.HasPrefix(statement, begins) {
			hit = true
			other()
		}
	}, func(tx *gorm.DB) error { return stock.Rollback(w.t.Context(), tx, requests, o) })
	assert.That(w.t, hit, "no statement began with %q", begins)
	return err
}

func TestReserveThatOvertakesARefusalIsReleased(t *testing.T) {
	t.Parallel()
	for name, items := range map[string][]stock.Item{
		"items": {item(1, 7)}, "whole order": nil, "another quantity": {item(1, 8)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			err := w.hookedRollback(refuse, "INSERT", func() {
				require.OK(t, w.reserve("a", item(1, 7)))
			}, message("a", "k", items...))
			if name == "another quantity" {
				wantBlame(t, err, map[int]error{0: stock.ErrQuantity})
				w.play("a is 1×7 reserved")
				return
			}
			require.OK(t, err)
			assert.Has(t, w.reservations("a"), "1×7 released stock.rollback/k", "reservations")
			w.play("left 100")
		})
	}
}

// A row that appears between the look and the release must not go without its quantity being added. (Reserve waits for
// the rollback; a service in another language may not.)
func TestRowsThatAppearAfterTheLookStopTheRollback(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(1, 7)))
	err := w.hookedRollback(stock.Options{}, "UPDATE stock_reservation", func() {
		w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 2, 1, 1)")
	}, message("a", "k"))
	assert.That(t, err != nil, "no error")
	w.wantReservations("a", "1×7 reserved, 2×1 reserved")
	require.OK(t, w.rollback(stock.Options{}, message("a", "k")))
	w.wantAmount(2, 101)
}

func TestReserveNeverOversells(t *testing.T) {
	w := newWorld(t)
	w.goods(20, 1, 2)
	errs := make([]error, 50)
	must.Side(50, func(i int) { errs[i] = w.reserve(fmt.Sprintf("order-%d", i), item(2, 1), item(1, 1)) })
	sold := 0
	for _, err := range errs {
		if err == nil {
			sold++
		} else {
			assert.Error(t, err, stock.ErrOutOfStock, "Reserve")
		}
	}
	assert.Is(t, sold, 20, "sold")
	w.play("left 0 0")
}

// Of a rollback of a whole order and a late part of it the part is released or refused, whichever comes first.
func TestALatePartRacesARefusingRollbackOfItsOrder(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	released, refusals := 0, 0
	for i := range 60 {
		order, part := fmt.Sprintf("order-%d", i), item(1+2*int64(i%2), 1) // before and behind the part that it has
		require.OK(t, w.reserve(order, item(2, 1)))
		acts := []func() error{
			func() error { return w.reserve(order, part) },
			func() error { return w.rollback(refuse, message(order, "k")) },
		}
		var errs [2]error
		must.Side(2, func(i int) {
			for again := true; again; again = mysqlNumber(errs[i]) == 1213 { // as every caller must after a deadlock
				errs[i] = acts[i]()
			}
		})
		require.OK(t, errs[1])
		switch reserve, got := errs[0], w.reservations(order); {
		case reserve == nil && strings.Count(got, "released") == 2 && !strings.Contains(got, "reserved"):
			released++
		case is(reserve, stock.ErrRefused) && strings.Count(got, "released") == 1 && !strings.Contains(got, "reserved"):
			refusals++
		default:
			t.Fatalf("reserve said %v, reservations are %s", reserve, got)
		}
	}
	t.Logf("%d parts came in time and were released, %d were refused", released, refusals)
	w.play("left 100 100 100")
}

// The part is committed when the rollback has looked and not yet marked the order: it is released like the others. What
// is deducted for good by then is not given back, and the rollback says so.
func TestAPartThatOvertakesTheMarkOfItsOrderIsReleased(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(2, 5)))
	require.OK(t, w.hookedRollback(refuse, "INSERT", func() {
		w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 7, 1)")
		w.exec("UPDATE stock SET amount = amount - 7 WHERE sku_id = 1")
	}, message("a", "k")))
	w.wantReservations("a", "0×0 refused stock.rollback/k, 1×7 released stock.rollback/k, 2×5 released stock.rollback/k")
	w.wantAmount(1, 100)
	err := w.hookedRollback(refuse, "INSERT", func() { w.play("reserve b 1×7", "confirm b") }, message("b", "k"))
	wantBlame(t, err, map[int]error{0: stock.ErrDeducted})
	w.play("b is 1×7 deducted")
}
