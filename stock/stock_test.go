package stock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// hookedRollback rolls back with another act committed just ahead of its first statement that begins so.
func (w *world) hookedRollback(o stock.Options, begins string, other func(), requests ...stock.Request) error {
	w.t.Helper()
	var once sync.Once
	hit := false
	err := w.tx(func(tx *gorm.DB) error {
		bound := tx.Session(&gorm.Session{NewDB: true, Context: w.t.Context()}) // a context makes the statement its own
		bound.Statement.ConnPool = hooked{tx.Statement.ConnPool, func(statement string) {
			if strings.HasPrefix(statement, begins) {
				once.Do(func() { hit = true; other() })
			}
		}}
		return stock.Rollback(w.t.Context(), bound, requests, o)
	})
	assert.That(w.t, hit, "no statement began with %q", begins)
	return err
}

func TestReserveThatOvertakesARefusalIsReleased(t *testing.T) {
	t.Parallel()
	for name, items := range map[string][]stock.Item{"items": {item(1, 7)}, "whole order": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			require.OK(t, w.hookedRollback(refuse, "INSERT", func() {
				require.OK(t, w.reserve("a", item(1, 7)))
			}, message("a", "k", items...)))
			got := w.reservations("a")
			assert.That(t, strings.HasSuffix(got, "1×7 released stock.rollback/k"), "reservations are %s", got)
			w.wantAmount(1, 100)
		})
	}
}

func TestReserveOfAnotherQuantityThatOvertakesARefusalIsBlamed(t *testing.T) {
	w := newWorld(t, 1)
	err := w.hookedRollback(refuse, "INSERT", func() {
		require.OK(t, w.reserve("a", item(1, 8)))
	}, message("a", "k", item(1, 7)))
	wantBlame(t, err, map[int]error{0: stock.ErrQuantity})
	w.wantReservations("a", "1×8 reserved")
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
	var sold, refused atomic.Int64
	must.Side(50, func(i int) {
		err := w.reserve(fmt.Sprintf("order-%d", i), item(2, 1), item(1, 1))
		switch {
		case err == nil:
			sold.Add(1)
		case is(err, stock.ErrOutOfStock):
			refused.Add(1)
		default:
			t.Error(err)
		}
	})
	assert.That(t, sold.Load() == 20 && refused.Load() == 30, "%d sold and %d refused, want 20 and 30", sold.Load(),
		refused.Load())
	w.wantAll(0, 1, 2)
}

// Of a rollback of a whole order and a late part of it the part is released or refused, whichever comes first.
func TestALatePartRacesARefusingRollbackOfItsOrder(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	released, refusals := 0, 0
	for i := range 60 {
		order, part := fmt.Sprintf("order-%d", i), item(1+2*int64(i%2), 1) // before and behind the part that it has
		require.OK(t, w.reserve(order, item(2, 1)))
		reserve, rollback := atOnce(func() error { return w.reserve(order, part) },
			func() error { return w.rollback(refuse, message(order, "k")) })
		require.That(t, rollback == nil, "rollback: %v", rollback)
		switch got := w.reservations(order); {
		case reserve == nil && strings.Count(got, "released") == 2 && !strings.Contains(got, "reserved"):
			released++
		case is(reserve, stock.ErrRefused) && strings.Count(got, "released") == 1 && !strings.Contains(got, "reserved"):
			refusals++
		default:
			t.Fatalf("reserve said %v, reservations are %s", reserve, got)
		}
	}
	t.Logf("%d parts came in time and were released, %d were refused", released, refusals)
	for sku := range int64(3) {
		w.wantAmount(sku+1, 100)
	}
}

// The part is committed when the rollback has looked and not yet marked the order: it is released like the others.
func TestAPartThatOvertakesTheMarkOfItsOrderIsReleased(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(2, 5)))
	require.OK(t, w.hookedRollback(refuse, "INSERT", func() {
		w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('a', 1, 7, 1)")
		w.exec("UPDATE stock SET amount = amount - 7 WHERE sku_id = 1")
	}, message("a", "k")))
	w.wantReservations("a", "0×0 refused stock.rollback/k, 1×7 released stock.rollback/k, 2×5 released stock.rollback/k")
	w.wantAmount(1, 100)
}

// atOnce does both at the same time.
func atOnce(one, other func() error) (ofOne, ofOther error) {
	var errs [2]error
	must.Side(2, func(i int) { errs[i] = again([]func() error{one, other}[i]) })
	return errs[0], errs[1]
}

// again repeats what lost a deadlock, as every caller must.
func again(f func() error) error {
	for {
		if err := f(); mysqlNumber(err) != 1213 {
			return err
		}
	}
}

func TestRollbacksOfTheSameGoodsDoNotDeadlock(t *testing.T) {
	w := newWorld(t)
	const workers, batches, size = 8, 6, 40
	for sku := range int64(10) {
		w.goods(0, sku+1)
	}
	requests := make([][]stock.Request, workers*batches)
	for b := range requests {
		for i := range size {
			n := b*size + i
			// Orders of different batches lie side by side in the index.
			requests[b] = append(requests[b], message(fmt.Sprintf("order-%04d-%02d", i, b), fmt.Sprintf("key-%d", n),
				item(int64(n%10)+1, 1), item(int64((n*3+1+n%10)%10)+1, 1)))
			if r := &requests[b][i]; r.Items[0].SKU == r.Items[1].SKU {
				r.Items = r.Items[:1]
			}
		}
		fill(w, requests[b])
	}
	must.Side(workers, func(worker int) {
		for b := range batches {
			assert.OK(t, w.rollback(stock.Options{}, requests[worker*batches+b]...))
		}
	})
	const sums = "SELECT CONCAT_WS(' ', SUM(IF(status = 1, quantity, 0)), SUM(IF(status = 2, quantity, 0))) FROM " +
		"stock_reservation"
	amount := stack.Number(t, w.db, "SELECT SUM(amount) FROM stock")
	assert.Is(t, stack.One[string](t, w.db, sums), fmt.Sprint("0 ", amount), "reserved, and released as on stock")
}
