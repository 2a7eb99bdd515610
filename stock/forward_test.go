package stock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

func TestErrorsOfTheDatabasePassThrough(t *testing.T) {
	w := newWorld(t)
	w.exec("DROP TABLE stock_reservation")
	for name, err := range map[string]error{
		"Reserve": w.reserve("a", item(1, 1)), "Confirm": w.confirm("a"), "Rollback": w.rollback(refuse, message("a", "k")),
	} {
		assert.Is(t, mysqlNumber(err), 1146, "%s without its table: error", name)
	}
	assert.OK(t, w.rollback(refuse), "a Rollback of nothing:")
}

func TestReservationsAreReadByOrderAndPageByPage(t *testing.T) {
	w := newWorld(t, 1, 2)
	var want []string
	for i := range 10 {
		require.OK(t, w.reserve(fmt.Sprint("A-", i), item(1, 2), item(2, 3)))
		want = append(want, fmt.Sprintf("A-%d 1 %v", i, i == 4), fmt.Sprintf("A-%d 2 %v", i, i == 4))
	}
	require.OK(t, w.rollback(stock.Options{}, stock.Request{OrderSN: "A-4", Tag: "t", Key: "k"}))
	of, err := stock.ReservationsOf(t.Context(), w.g, "A-4")
	require.That(t, err == nil && len(of) == 2, "%v, %v; want two rows", of, err)
	r := of[1]
	assert.That(t, r.SKU == 2 && r.Quantity == 3 && r.Status == stock.Released && r.Tag == "t" && r.Key == "k" &&
		r.Named && time.Since(r.UpdatedAt).Abs() <= time.Minute && r.Age.Abs() <= time.Minute, "the second row is %+v", r)
	for _, limit := range []int{1, 3, 20, 100} {
		var last stock.Reservation
		var got []string
		for n := limit; n == limit; {
			page := require.Get(stock.Reservations(t.Context(), w.g, last, limit))(t)
			for _, last = range page {
				got = append(got, fmt.Sprintf("%s %d %v", last.OrderSN, last.SKU, last.Named))
			}
			n = len(page)
		}
		assert.Equal(t, got, want, "by pages of %d", limit)
	}
	below, err := stock.Negative(t.Context(), w.g, 10)
	assert.That(t, err == nil && len(below) == 0, "amounts below 0: %v, %v; want none", below, err)
	w.exec("ALTER TABLE stock DROP CONSTRAINT stock_never_oversold")
	w.exec("UPDATE stock SET amount = -1 WHERE sku_id = 2")
	below, err = stock.Negative(t.Context(), w.g, 10)
	assert.That(t, err == nil && len(below) == 1 && below[0] == 2, "amounts below 0: %v, %v; want sku 2", below, err)
}

// Every statement goes by ranges of the primary key, also where the tables are small or statistics missing: a scan
// would wait for the locks of rows that nobody asked for.
func TestStatementsUseThePrimaryKey(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{0, 5000} {
		// requests that leave a row of their order reserved, and how many statements the rollback takes
		for single, ofRollback := range map[int]int{1: 7, 2: 7, 500: 6} {
			t.Run(fmt.Sprintf("%d other rows, %d row by row", rows, single), func(t *testing.T) {
				testPrimaryKey(t, rows, single, ofRollback)
			})
		}
	}
}

func testPrimaryKey(t *testing.T, rows, single, ofRollback int) {
	w := newWorld(t)
	requests := make([]stock.Request, 500)
	for i := range requests {
		requests[i] = message(fmt.Sprintf("order-%04d", i), fmt.Sprintf("key-%d", i), item(int64(i)+1, 1),
			item(int64(i)+501, 2))
	}
	w.goods(10, skus(1000)...)
	fill(w, requests)
	fill(w, unrelated(rows))
	late := requests[1].Items
	for i := range single {
		requests[i].Items = requests[i].Items[:1]
	}
	requests = append(requests, message("late", "late"))
	var statements []string
	look := func(f func(tx *gorm.DB) error) {
		t.Helper()
		require.OK(t, w.hook(func(statement string) { statements = append(statements, statement) }, f))
	}
	look(func(tx *gorm.DB) error { return stock.Rollback(t.Context(), tx, requests, refuse) })
	assert.Is(t, len(statements), ofRollback, "statements: %.60q", statements)
	look(func(tx *gorm.DB) error { return stock.Reserve(t.Context(), tx, "new", late) })
	look(func(tx *gorm.DB) error { return stock.Confirm(t.Context(), tx, "new") })
	require.OK(t, w.reserve("last", late...))
	look(func(tx *gorm.DB) error {
		return stock.Rollback(t.Context(), tx, []stock.Request{message("last", "last", late...)}, refuse)
	})
	assert.Is(t, len(statements), ofRollback+9, "statements: %.80q", statements)
	for _, statement := range statements {
		if strings.HasPrefix(statement, "INSERT") {
			continue
		}
		for _, of := range stack.RowsOf(t, w.db, stack.Explain+statement) {
			kind, key := of["type"], of["key"]
			if kind != "range" && kind != "ref" && kind != "const" || key != "PRIMARY" {
				t.Errorf("access %s by key %q: %.120s … %s", kind, key, statement, statement[max(0, len(statement)-200):])
			}
		}
	}
}

var (
	sqlBlock  = regexp.MustCompile("(?s)```sql\n(.*?);\n```")
	parameter = regexp.MustCompile(`:[a-z_]+`)
)

// A service in another language that does what README.md says and this package see each other's work.
func TestTheDocumentedSQLWorks(t *testing.T) {
	readme := require.Get(os.ReadFile("README.md"))(t)
	var blocks []string
	for _, match := range sqlBlock.FindAllStringSubmatch(string(readme), -1) {
		blocks = append(blocks, match[1])
	}
	require.Is(t, len(blocks), 7, "statements")
	insert, look, take, deduct, release, restock, mark := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4], blocks[5],
		blocks[6]
	w := newWorld(t)
	w.goods(10, 1)
	values := map[string]any{":sku_id": 1, ":quantity": 4, ":tag": "tag", ":key": "key"}
	do := func(order string, statements ...string) error {
		values[":order_sn"] = order
		return w.tx(func(tx *gorm.DB) error {
			for _, statement := range statements {
				var args []any
				text := parameter.ReplaceAllStringFunc(statement, func(name string) string {
					args = append(args, values[name])
					return "?"
				})
				if strings.HasPrefix(text, "SELECT") {
					stack.RowsOf(t, tx.Statement.ConnPool, text, args...)
					continue
				}
				res, err := tx.Statement.ConnPool.ExecContext(t.Context(), text, args...)
				if err != nil {
					return err
				}
				if n, err := res.RowsAffected(); err != nil || n != 1 {
					return errors.Join(sql.ErrNoRows, err)
				}
			}
			return nil
		})
	}
	require.OK(t, do("a", insert, look, take))
	w.wantReservations("a", "1×4 reserved")
	w.wantAmount(1, 6)
	require.OK(t, w.reserve("a", item(1, 4))) // already done
	err := do("a", insert)
	assert.That(t, mysqlNumber(err) == 1062, "reserved twice: %v, want error 1062", err)
	require.OK(t, do("b", insert, look, take))
	assert.Error(t, do("c", insert, look, take), sql.ErrNoRows, "sold what was not there")
	require.OK(t, do("a", look, deduct))
	require.OK(t, w.confirm("a"))
	require.OK(t, do("b", look, release, restock))
	require.OK(t, w.rollback(refuse, message("b", "k", item(1, 4)), message("d", "k", item(1, 4))))
	w.wantReservations("a", "1×4 deducted")
	w.wantReservations("b", "1×4 released tag/key")
	err = do("d", insert)
	assert.That(t, mysqlNumber(err) == 1062, "reserved a refused item: %v, want error 1062", err)
	w.wantAmount(1, 6)
	require.OK(t, do("e", mark, look))
	require.OK(t, w.rollback(refuse, message("e", "k")))
	w.wantReservations("e", "0×0 refused tag/key")
	assert.Error(t, w.reserve("e", item(1, 4)), stock.ErrRefused, "reserved for an order that is marked")
}

// Whatever is done in whatever order: of every sku, what is on stock, reserved and deducted is what there was. And what
// a call says is what its order's rows allow.
func TestGoodsAreNeitherMadeNorLost(t *testing.T) {
	w := newWorld(t)
	const skus = 3
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		w.exec("DELETE FROM stock_reservation")
		w.exec("DELETE FROM stock")
		w.goods(20, 1, 2, 3)
		order := rapid.SampledFrom([]string{"a", "b", "c"})
		items := rapid.Custom(func(rt *rapid.T) []stock.Item {
			distinct := rapid.SliceOfNDistinct(rapid.Int64Range(1, skus), 1, skus, rapid.ID[int64]).Draw(rt, "skus")
			list := make([]stock.Item, len(distinct))
			for i, sku := range distinct {
				list[i] = item(sku, rapid.Int64Range(1, 3).Draw(rt, "quantity"))
			}
			return list
		})
		key := 0
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			before := w.state()
			var err error
			switch act := rapid.IntRange(0, 6).Draw(rt, "act"); act {
			case 0, 1, 2:
				err = w.reserve(order.Draw(rt, "order"), items.Draw(rt, "items")...)
			case 3:
				err = w.confirm(order.Draw(rt, "order"))
			default:
				o := stock.Options{Empty: rapid.SampledFrom([]stock.EmptyPolicy{stock.Retry, stock.Refuse}).Draw(rt, "policy")}
				requests := make([]stock.Request, rapid.IntRange(1, 3).Draw(rt, "requests"))
				for i := range requests {
					key++
					requests[i] = message(order.Draw(rt, "order"), fmt.Sprintf("k%d", key))
					if rapid.Bool().Draw(rt, "with items") {
						requests[i].Items = items.Draw(rt, "items")
					}
				}
				err = w.rollback(o, requests...)
			}
			require.Is(rt, mysqlNumber(err), 0, "database error: %v", err)
			if after := w.state(); err != nil && after != before {
				rt.Fatalf("failed with %v and changed\n%s to\n%s", err, before, after)
			}
			const held = `SELECT GROUP_CONCAT(s.amount + COALESCE((SELECT SUM(r.quantity)
				FROM stock_reservation r WHERE r.sku_id = s.sku_id AND r.status IN (1, 3)), 0)) FROM stock s`
			require.Is(rt, stack.One[string](t, w.db, held), "20,20,20", "on stock, reserved and deducted are")
		}
	})
	assert.That(t, run != 0, "nothing was tried")
}

// state is everything in both tables as text.
func (w *world) state() string {
	w.t.Helper()
	return stack.One[string](w.t, w.db, `SELECT CONCAT(
		(SELECT GROUP_CONCAT(CONCAT_WS('/', sku_id, amount, version) ORDER BY sku_id) FROM stock), ' | ',
		COALESCE((SELECT GROUP_CONCAT(CONCAT_WS('/', order_sn, sku_id, quantity, status, rollback_key) ORDER BY order_sn,
			sku_id) FROM stock_reservation), ''))`)
}
