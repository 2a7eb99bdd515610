package stock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

func TestReservationsAreReadByOrderAndPageByPage(t *testing.T) {
	w := newWorld(t)
	w.exec("INSERT INTO stock (sku_id, amount, version) VALUES (1, 100, 0), (2, 100, 0)")
	for i := range 10 {
		w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES (?, 1, 2, 1, "+
			"UTC_TIMESTAMP(6)), (?, 2, 3, 1, UTC_TIMESTAMP(6))",
			fmt.Sprint("A-", i), fmt.Sprint("A-", i))
	}
	require.OK(t, w.rollback(stock.Options{}, stock.Request{OrderSN: "A-4", Tag: "t", Key: "k"}))
	of, err := stock.ReservationsOf(t.Context(), w.g, "A-4")
	require.That(t, err == nil && len(of) == 2, "%v, %v; want two rows", of, err)
	r := of[1]
	assert.That(t, r.SKU == 2 && r.Quantity == 3 && r.Status == stock.Released && r.Tag == "t" && r.Key == "k" &&
		r.Named && time.Since(r.UpdatedAt).Abs() <= time.Minute && r.Age.Abs() <= time.Minute, "the second row is %+v", r)
	for _, limit := range []int{1, 3, 20, 100} {
		var last stock.Reservation
		seen, named := 0, 0
		for {
			page := require.Get(stock.Reservations(t.Context(), w.g, last, limit))(t)
			for _, r := range page {
				assert.That(t, last.OrderSN <= r.OrderSN && (last.OrderSN != r.OrderSN || last.SKU < r.SKU),
					"limit %d: %v after %v", limit, r, last)
				last = r
				if r.Named {
					named++
				}
			}
			seen += len(page)
			if len(page) < limit {
				break
			}
		}
		assert.That(t, seen == 20 && named == 2, "limit %d: %d rows, %d with a name; want 20, 2", limit, seen, named)
	}
	below, err := stock.Negative(t.Context(), w.g, 10)
	assert.That(t, err == nil && len(below) == 0, "amounts below 0: %v, %v; want none", below, err)
	w.exec("ALTER TABLE stock DROP CONSTRAINT stock_never_oversold")
	w.exec("UPDATE stock SET amount = -1 WHERE sku_id = 2")
	below, err = stock.Negative(t.Context(), w.g, 10)
	assert.That(t, err == nil && len(below) == 1 && below[0] == 2, "amounts below 0: %v, %v; want sku 2", below, err)
}
