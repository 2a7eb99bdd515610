package stock_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

// Whatever is done in whatever order: of every sku, what is on stock, reserved and deducted is what there was. And what
// a call says is what its order's rows allow.
func TestGoodsAreNeitherMadeNorLost(t *testing.T) {
	w := newWorld(t)
	const skus, initial = 3, 20
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		w.exec("DELETE FROM stock_reservation")
		w.exec("DELETE FROM stock")
		w.goods(initial, 1, 2, 3)
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
			for sku, held := range w.held() {
				if held != initial {
					rt.Fatalf("sku %d: %d on stock, reserved and deducted, want %d\n%s", sku, held, initial, w.state())
				}
			}
		}
	})
	assert.That(t, run != 0, "nothing was tried")
}

// held sums amount, reserved and deducted by sku.
func (w *world) held() map[int64]int64 {
	w.t.Helper()
	rows := require.Get(w.db.QueryContext(w.t.Context(), `SELECT s.sku_id, s.amount + COALESCE((SELECT SUM(r.quantity)
		FROM stock_reservation r WHERE r.sku_id = s.sku_id AND r.status IN (1, 3)), 0) FROM stock s`))(w.t)
	defer func() { _ = rows.Close() }()
	held := make(map[int64]int64)
	for rows.Next() {
		var sku, n int64
		require.OK(w.t, rows.Scan(&sku, &n))
		held[sku] = n
	}
	require.OK(w.t, rows.Err())
	return held
}

// state is everything in both tables as text.
func (w *world) state() string {
	w.t.Helper()
	var text string
	require.OK(w.t, w.db.QueryRowContext(w.t.Context(), `SELECT CONCAT(
		(SELECT GROUP_CONCAT(CONCAT_WS('/', sku_id, amount, version) ORDER BY sku_id) FROM stock), ' | ',
		COALESCE((SELECT GROUP_CONCAT(CONCAT_WS('/', order_sn, sku_id, quantity, status, rollback_key) ORDER BY order_sn,
			sku_id) FROM stock_reservation), ''))`).Scan(&text))
	return text
}
