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

func TestReserveTakesAllOrNothing(t *testing.T) {
	w := newWorld(t)
	w.goods(10, 1, 2)
	require.OK(t, w.reserve("a", item(2, 3), item(1, 10)))
	w.wantReservations("a", "1×10 reserved, 2×3 reserved")
	w.wantAmount(1, 0)
	w.wantAmount(2, 7)
	err := w.reserve("b", item(1, 1), item(2, 1))
	assert.That(t, is(err, stock.ErrOutOfStock) && strings.Contains(err.Error(),
		`order "b": sku 1: out of stock: asked for 1, `+`left are 0`), "error is %v", err)
	w.wantReservations("b", "")
	w.wantAmount(2, 7)
}

func TestReserveAgainIsDone(t *testing.T) {
	w := newWorld(t)
	w.goods(10, 1, 2)
	require.OK(t, w.reserve("a", item(1, 1), item(2, 2)))
	require.OK(t, w.reserve("a", item(2, 2), item(1, 1)))
	w.wantAmount(1, 9)
	w.wantAmount(2, 8)
}

// A call of more items than one statement takes inserts rows of its own before it meets those of an earlier call.
func TestReserveTakesNothingForFree(t *testing.T) {
	w := newWorld(t)
	var items []stock.Item
	values := ""
	for sku := range int64(1000) {
		items = append(items, item(sku+1, 1))
		values += fmt.Sprintf(", (%d, 10, 0)", sku+1)
	}
	w.exec("INSERT INTO stock (sku_id, amount, version) VALUES " + values[2:])
	require.OK(t, w.reserve("a", items[900:]...))
	assert.Error(t, w.reserve("a", items...), stock.ErrQuantity, "error")
	require.OK(t, w.rollback(stock.Options{}, message("a", "k")))
	w.wantAll(10, 1, 1000)
}

func TestReserveRefuses(t *testing.T) {
	w := newWorld(t)
	w.goods(10, 1, 2)
	require.OK(t, w.reserve("held", item(1, 1)))
	require.OK(t, w.reserve("final", item(1, 1)))
	require.OK(t, w.confirm("final"))
	require.OK(t, w.reserve("gone", item(1, 1)))
	require.OK(t, w.rollback(stock.Options{}, message("gone", "k")))
	require.OK(t, w.rollback(refuse, message("refused", "k", item(1, 1)), message("whole", "k")))
	tests := []struct {
		name, order string
		items       []stock.Item
		want        error
	}{
		{"unknown sku", "new", []stock.Item{item(1, 1), item(3, 1)}, stock.ErrUnknownSKU},
		{"too many", "new", []stock.Item{item(1, 1), item(2, 11)}, stock.ErrOutOfStock},
		{"another quantity", "held", []stock.Item{item(1, 2)}, stock.ErrQuantity},
		{"more items than before", "held", []stock.Item{item(1, 1), item(2, 1)}, stock.ErrQuantity},
		{"deducted", "final", []stock.Item{item(1, 1)}, stock.ErrDeducted},
		{"released", "gone", []stock.Item{item(1, 1)}, stock.ErrReleased},
		{"refused item", "refused", []stock.Item{item(1, 1)}, stock.ErrRefused},
		{"refused item and another", "refused", []stock.Item{item(1, 1), item(2, 1)}, stock.ErrRefused},
		{"refused order", "whole", []stock.Item{item(2, 1)}, stock.ErrRefused},
		{"no items", "new", nil, stock.ErrInvalid},
		{"no order", "", []stock.Item{item(1, 1)}, stock.ErrInvalid},
		{"sku twice", "new", []stock.Item{item(1, 1), item(1, 1)}, stock.ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			before := w.reservations(test.order)
			assert.Error(t, w.reserve(test.order, test.items...), test.want, "error")
			w.wantReservations(test.order, before)
			w.wantAmount(1, 8)
			w.wantAmount(2, 10)
		})
	}
}

func TestConfirmIsFinal(t *testing.T) {
	w := newWorld(t)
	w.goods(10, 1, 2)
	require.OK(t, w.reserve("a", item(1, 1), item(2, 2)))
	require.OK(t, w.confirm("a"))
	require.OK(t, w.confirm("a"))
	w.wantReservations("a", "1×1 deducted, 2×2 deducted")
	w.wantAmount(1, 9)

	require.OK(t, w.reserve("b", item(1, 1), item(2, 2)))
	require.OK(t, w.rollback(stock.Options{}, message("b", "k", item(1, 1))))
	for order, want := range map[string]error{
		"b": stock.ErrReleased, "none": stock.ErrNoReservation, "": stock.ErrInvalid,
	} {
		assert.Error(t, w.confirm(order), want, "Confirm of %q", order)
	}
	w.wantReservations("b", "1×1 released stock.rollback/k, 2×2 reserved")
}

func TestErrorsOfTheDatabasePassThrough(t *testing.T) {
	w := newWorld(t)
	w.exec("DROP TABLE stock_reservation")
	acts := map[string]func(tx *gorm.DB) error{
		"Reserve": func(tx *gorm.DB) error { return stock.Reserve(t.Context(), tx, "a", manyItems(1)) },
		"Confirm": func(tx *gorm.DB) error { return stock.Confirm(t.Context(), tx, "a") },
		"Rollback": func(tx *gorm.DB) error {
			return stock.Rollback(t.Context(), tx, []stock.Request{message("a", "k")}, refuse)
		},
	}
	for name, act := range acts {
		assert.Is(t, mysqlNumber(w.tx(act)), 1146, "%s without its table: error", name)
	}
}
