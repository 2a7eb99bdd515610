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
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

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
	t  testing.TB
	db *sql.DB
	g  *gorm.DB
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := newEmptyWorld(t)
	w.migrate()
	for _, statement := range audit {
		w.exec(statement)
	}
	return w
}

// newEmptyWorld has no tables yet.
func newEmptyWorld(t testing.TB) *world {
	t.Helper()
	config, err := mysql.ParseDSN(stack.MySQL(t))
	if err != nil {
		t.Fatal(err)
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	g, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: db}), &gorm.Config{
		SkipDefaultTransaction: true, Logger: logger.Discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, db: db, g: g}
}

func (w *world) migrate() {
	w.t.Helper()
	must(w.t, dedup.Migrate(w.t.Context(), w.g, withStock()))
}

// exec runs a statement that must succeed.
func (w *world) exec(statement string, args ...any) {
	w.t.Helper()
	if _, err := w.db.ExecContext(w.t.Context(), statement, args...); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
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

// amount is what the stock has of a sku.
func (w *world) amount(sku int64) int64 {
	w.t.Helper()
	var n int64
	if err := w.db.QueryRowContext(w.t.Context(), "SELECT amount FROM stock WHERE sku_id = ?", sku).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// reservations are an order's rows as text: sku×quantity status (tag/key), or nothing.
func (w *world) reservations(order string) string {
	w.t.Helper()
	rows, err := w.db.QueryContext(w.t.Context(),
		`SELECT sku_id, quantity, status, COALESCE(rollback_tag,''), COALESCE(rollback_key,'')
		FROM stock_reservation WHERE order_sn = ? ORDER BY sku_id`, order)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var all []string
	for rows.Next() {
		var sku, quantity int64
		var status int
		var tag, key string
		if err := rows.Scan(&sku, &quantity, &status, &tag, &key); err != nil {
			w.t.Fatal(err)
		}
		text := fmt.Sprintf("%d×%d %s", sku, quantity, [...]string{
			1: "reserved", 2: "released", 3: "deducted", 4: "refused",
		}[status])
		if tag+key != "" {
			text += " " + tag + "/" + key
		}
		all = append(all, text)
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return strings.Join(all, ", ")
}

func (w *world) wantReservations(order, want string) {
	w.t.Helper()
	if got := w.reservations(order); got != want {
		w.t.Errorf("reservations of %s are %q, want %q", order, got, want)
	}
}

func (w *world) wantAmount(sku, want int64) {
	w.t.Helper()
	if got := w.amount(sku); got != want {
		w.t.Errorf("amount of %d is %d, want %d", sku, got, want)
	}
}

// audited counts the rows that a trigger saw changing to released.
func (w *world) audited() int {
	w.t.Helper()
	var n, odd int
	err := w.db.QueryRowContext(w.t.Context(),
		"SELECT COUNT(*), COALESCE(SUM(was <> 1), 0) FROM audit WHERE is_now = 2").Scan(&n, &odd)
	if err != nil {
		w.t.Fatal(err)
	}
	if odd > 0 {
		w.t.Errorf("%d rows became released that were not reserved", odd)
	}
	return n
}

// message is a request of one order under a key of its own.
func message(order, key string, items ...stock.Item) stock.Request {
	return stock.Request{OrderSN: order, Items: items, Tag: "stock.rollback", Key: key}
}

func item(sku, quantity int64) stock.Item { return stock.Item{SKU: sku, Quantity: quantity} }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantBlame holds err against the requests to blame: index to sentinel.
func wantBlame(t testing.TB, err error, want map[int]error) {
	t.Helper()
	blame, ok := errors.AsType[*stock.BatchError](err)
	if !ok {
		t.Fatalf("error is %v, want a BatchError", err)
	}
	if len(blame.Requests) != len(want) {
		t.Errorf("%d requests blamed, want %d: %v", len(blame.Requests), len(want), err)
	}
	if !slices.IsSortedFunc(blame.Requests, func(a, b stock.RequestError) int { return a.Index - b.Index }) {
		t.Errorf("requests are not in order of index: %v", blame.Requests)
	}
	for _, r := range blame.Requests {
		if !errors.Is(r.Err, want[r.Index]) {
			t.Errorf("request %d: %v, want %v", r.Index, r.Err, want[r.Index])
		}
		later := errors.Is(r.Err, stock.ErrNoReservation) || errors.Is(r.Err, stock.ErrUnknownSKU) ||
			errors.Is(r.Err, stock.ErrOverflow)
		if r.Permanent == later {
			t.Errorf("request %d: permanent is %v with %v", r.Index, r.Permanent, r.Err)
		}
		if !errors.Is(err, want[r.Index]) {
			t.Errorf("the batch's error does not unwrap to %v", want[r.Index])
		}
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
