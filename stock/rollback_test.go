package stock_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/stock"
)

var refuse = stock.Options{Empty: stock.Refuse}

func TestRollbackReturnsWhatWasReserved(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	require.OK(t, w.reserve("a", item(2, 5), item(1, 7)))
	w.wantAmount(1, 93)
	require.OK(t, w.rollback(stock.Options{}, message("a", "k1", item(1, 7), item(2, 5))))
	w.wantAll(100, 1, 2)
	w.wantReservations("a", "1×7 released stock.rollback/k1, 2×5 released stock.rollback/k1")
	w.wantReleases(2)
	versions := stack.One[string](t, w.db, "SELECT GROUP_CONCAT(version ORDER BY sku_id) FROM stock")
	if versions != "2,2,0" { // one change by Reserve, one by Rollback
		t.Errorf("versions are %s", versions)
	}
}

func TestRollbackWithoutItemsReturnsEverythingStillReserved(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	require.OK(t, w.reserve("a", item(1, 1), item(2, 2), item(3, 3)))
	require.OK(t, w.rollback(stock.Options{}, message("a", "k1", item(2, 2))))
	require.OK(t, w.rollback(stock.Options{}, message("a", "k2")))
	w.wantReservations("a", "1×1 released stock.rollback/k2, 2×2 released stock.rollback/k1, 3×3 released "+
		"stock.rollback/k2")
	for sku := range int64(3) {
		w.wantAmount(sku+1, 100)
	}
}

func TestRollbackLeavesDeductedRowsBesideReservedOnes(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(1, 1)))
	require.OK(t, w.confirm("a"))
	require.OK(t, w.reserve("a", item(2, 2)))
	require.OK(t, w.rollback(stock.Options{}, message("a", "k1")))
	require.OK(t, w.rollback(stock.Options{}, message("a", "k2")))
	w.wantReservations("a", "1×1 deducted, 2×2 released stock.rollback/k1")
}

func TestRollbackTwiceHasOneEffect(t *testing.T) {
	t.Parallel()
	for name, items := range map[string][]stock.Item{"items": {item(1, 7)}, "whole order": nil} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			require.OK(t, w.reserve("a", item(1, 7)))
			require.OK(t, w.rollback(stock.Options{}, message("a", "k1", items...), message("a", "k2", items...)))
			require.OK(t, w.rollback(stock.Options{}, message("a", "k1", items...)))
			w.wantReservations("a", "1×7 released stock.rollback/k1")
			require.OK(t, w.rollback(refuse, message("a", "k3", items...)))
			w.wantAmount(1, 100)
			marked := "1×7 released stock.rollback/k1"
			if items == nil {
				marked = "0×0 refused stock.rollback/k3, " + marked
			}
			w.wantReservations("a", marked)
			w.wantReleases(1)
		})
	}
}

// Two messages that share an order are marked row by row; others order by order. Both keep whose release it was.
func TestRollbackMarksEachRowWithItsMessage(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	for _, order := range []string{"a", "b", "c"} {
		require.OK(t, w.reserve(order, item(1, 1), item(2, 2), item(3, 3)))
	}
	other := message("c", "k4")
	other.Tag = "order.cancelled"
	require.OK(t, w.rollback(stock.Options{}, message("a", "k1", item(1, 1)), message("b", "k2", item(3, 3), item(2, 2),
		item(1, 1)),
		message("a", "k3", item(3, 3), item(1, 1)), other))
	w.wantReservations("a", "1×1 released stock.rollback/k1, 2×2 reserved, 3×3 released stock.rollback/k3")
	w.wantReservations("b", "1×1 released stock.rollback/k2, 2×2 released stock.rollback/k2, 3×3 released "+
		"stock.rollback/k2")
	w.wantReservations("c", "1×1 released order.cancelled/k4, 2×2 released order.cancelled/k4, 3×3 released "+
		"order.cancelled/k4")
	w.wantAmount(1, 100)
	w.wantAmount(2, 98)
	w.wantAmount(3, 100)
}

// The names have the same CRC-32, by which a statement finds a row's message.
func TestRollbackTellsCollidingOrdersApart(t *testing.T) {
	w := newWorld(t, 1, 2)
	for _, order := range []string{"plumless", "buckeroo", "other"} {
		require.OK(t, w.reserve(order, item(1, 1), item(2, 1)))
	}
	require.OK(t, w.rollback(stock.Options{}, message("plumless", "k1", item(1, 1)), message("buckeroo", "k2", item(1, 1)),
		message("other", "k3")))
	require.OK(t, w.rollback(stock.Options{}, message("plumless", "k4"), message("buckeroo", "k5"),
		message("other", "k6")))
	w.wantReservations("plumless", "1×1 released stock.rollback/k1, 2×1 released stock.rollback/k4")
	w.wantReservations("buckeroo", "1×1 released stock.rollback/k2, 2×1 released stock.rollback/k5")
	w.wantReservations("other", "1×1 released stock.rollback/k3, 2×1 released stock.rollback/k3")
	w.wantAmount(1, 100)
}

// An order number is bytes: no case, no accents, no padding, no quoting.
func TestRollbackKeepsOrdersApartByTheirBytes(t *testing.T) {
	w := newWorld(t)
	w.goods(1000, 1)
	orders := []string{"a", "A", "á", "a ", "a\x00", `a'--`, `a\`, `a"?`, "😀", "😁", "\xff\xfe", strings.Repeat("z", 64)}
	for i, order := range orders {
		require.OK(t, w.reserve(order, item(1, int64(i)+1)))
	}
	for i, order := range orders {
		key := `key'\"? ` + order
		require.OK(t, w.rollback(stock.Options{}, message(order, key, item(1, int64(i)+1))))
		w.wantReservations(order, fmt.Sprintf("1×%d released stock.rollback/%s", i+1, key))
		w.wantReleases(i + 1)
	}
	w.wantAmount(1, 1000)
}

// Given an order or item that is unknown or deducted for good, another quantity than reserved, or an amount that
// would overflow, then its messages are blamed and no others, and nothing is written.
func TestRollbackBlamesWhatCannotTakeEffect(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	w.goods(math.MaxInt64-5, 4)
	require.OK(t, w.reserve("good", item(1, 1), item(2, 2)))
	require.OK(t, w.reserve("two", item(1, 1), item(2, 2)))
	require.OK(t, w.reserve("final", item(3, 3)))
	require.OK(t, w.confirm("final"))
	w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ('ghost', 99, 1, 1), ('full', " +
		"4, 9, 1)")
	require.OK(t, w.reserve("done", item(1, 1)))
	require.OK(t, w.rollback(stock.Options{}, message("done", "k0")))
	good := message("good", "good", item(1, 1), item(2, 2))
	tests := []struct {
		name     string
		request  stock.Request
		want     error
		contains string
	}{
		{"more than reserved", message("two", "k", item(1, 1), item(2, 3)), stock.ErrQuantity, "message has 3, " +
			"reserved are 2"},
		{"less than reserved", message("two", "k", item(2, 1)), stock.ErrQuantity, `order "two" sku 2`},
		{"other than was released", message("done", "k", item(1, 2)), stock.ErrQuantity, "reserved are 1"},
		{"deducted item", message("final", "k", item(3, 3)), stock.ErrDeducted, `order "final" sku 3`},
		{"deducted order", message("final", "k"), stock.ErrDeducted, `order "final"`},
		{"unknown order", message("none", "k", item(1, 1)), stock.ErrNoReservation, `order "none" sku 1`},
		{"unknown order without items", message("none", "k"), stock.ErrNoReservation, `order "none"`},
		{"item never reserved", message("two", "k", item(1, 1), item(3, 1)), stock.ErrNoReservation, `order "two" sku 3`},
		{"never reserved, then quantity", message("two", "k", item(3, 1), item(2, 1)), stock.ErrQuantity, "sku 2"},
		{"quantity, then never reserved", message("two", "k", item(2, 1), item(3, 1)), stock.ErrQuantity, "sku 2"},
		{"sku without a stock row", message("ghost", "k", item(99, 1)), stock.ErrUnknownSKU,
			`order "ghost" sku 99: unknown sku; if it should have a row: INSERT INTO stock (sku_id, amount) VALUES (99, 0)`},
		{"amount that would overflow", message("full", "k"), stock.ErrOverflow, "sku 4"},
		{"no order", message("", "k"), stock.ErrInvalid, "0 bytes"},
		{"long order", message(strings.Repeat("x", 65), "k"), stock.ErrInvalid, "65 bytes"},
		{"long key", message("two", strings.Repeat("x", 256)), stock.ErrInvalid, "256 bytes"},
		{"long tag", stock.Request{OrderSN: "two", Tag: strings.Repeat("x", 101)}, stock.ErrInvalid, "tag of 101"},
		{"empty items", stock.Request{OrderSN: "two", Items: []stock.Item{}}, stock.ErrInvalid, "no items"},
		{"sku 0", message("two", "k", item(0, 1)), stock.ErrInvalid, "sku 0"},
		{"quantity 0", message("two", "k", item(1, 0)), stock.ErrInvalid, "quantity 0"},
		{"quantity above the column", message("two", "k", item(1, math.MaxInt32+1)), stock.ErrInvalid, "quantity 2147483648"},
		{"sku twice", message("two", "k", item(1, 1), item(2, 2), item(1, 1)), stock.ErrInvalid, "sku 1 is named twice"},
		{"sku twice among many", message("two", "k", append(manyItems(20), item(3, 1))...), stock.ErrInvalid,
			"sku 3 is named twice"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			want := map[int]error{1: test.want, 3: test.want}
			if test.want == stock.ErrUnknownSKU || test.want == stock.ErrOverflow {
				delete(want, 3) // found out when writing, where the second one has nothing left to release
			}
			err := w.rollback(stock.Options{}, good, test.request, message("done", "again"), test.request)
			wantBlame(t, err, want)
			assert.Has(t, err.Error(), test.contains, "error %q does not say", err)
			w.wantReservations("good", "1×1 reserved, 2×2 reserved")
			w.wantReservations("two", "1×1 reserved, 2×2 reserved")
			w.wantAmount(1, 98)
			w.wantAmount(2, 96)
		})
	}
	w.t = t
	require.OK(t, w.rollback(stock.Options{}, good))
	w.wantReservations("good", "1×1 released stock.rollback/good, 2×2 released stock.rollback/good")
}

func manyItems(n int) []stock.Item {
	items := make([]stock.Item, n)
	for i := range items {
		items[i] = item(int64(i)+1, 1)
	}
	return items
}

// Whoever asks for it gets what can take effect although others cannot, as far as that is known before anything is
// written, and is told what was released.
func TestRollbackReleasesTheOthers(t *testing.T) {
	w := newWorld(t, 1, 2)
	// each case has two orders that can be rolled back, and one whose goods have no stock row
	no, none := stock.Options{}, stock.ErrNoReservation
	others, refusing := stock.Options{Others: true}, stock.Options{Others: true, Empty: stock.Refuse}
	for _, test := range []struct {
		name     string
		options  stock.Options
		requests []stock.Request // of the orders of this case
		blamed   map[int]error
		others   bool
		released bool // order good, which the request with key g names
	}{
		{"nobody is to blame", others, []stock.Request{message("two", "k"), message("good", "g")}, nil, false, true},
		{"nobody asked for it", no, []stock.Request{message("none", "k"), message("good", "g")}, map[int]error{0: none},
			false, false},
		{"found when looking", others, []stock.Request{message("none", "k"), message("good", "g"),
			message("two", "k", item(1, 5))}, map[int]error{0: none, 2: stock.ErrQuantity}, true, true},
		{"of the same order", others, []stock.Request{message("good", "k", item(1, 5)),
			message("good", "g", item(1, 1), item(2, 2))}, map[int]error{0: stock.ErrQuantity}, true, true},
		{"all", others, []stock.Request{message("none", "k"), message("nil", "g")}, map[int]error{0: none, 1: none}, false,
			false},
		{"found when writing", others, []stock.Request{message("none", "k"), message("good", "g"), message("ghost", "k")},
			map[int]error{0: none, 2: stock.ErrUnknownSKU}, false, false},
		{"beside a refusal", refusing, []stock.Request{message("two", "k", item(1, 5)), message("good", "g"),
			message("none", "k", item(1, 1))}, map[int]error{0: stock.ErrQuantity}, false, false},
		{"invalid", others, []stock.Request{message("", "k"), message("good", "g")}, map[int]error{0: stock.ErrInvalid},
			false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			order := func(name string) string { return test.name + ", " + name }
			require.OK(t, w.reserve(order("good"), item(1, 1), item(2, 2)))
			require.OK(t, w.reserve(order("two"), item(1, 1)))
			w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (?, 99, 1, 1)", order("ghost"))
			for i, r := range test.requests {
				if r.OrderSN != "" {
					test.requests[i].OrderSN = order(r.OrderSN)
				}
			}
			// when they are rolled back beside others, and the transaction is committed if it may be
			var err error
			told := map[string][]stock.Item{}
			test.options.Released = func(request int, items []stock.Item) {
				told[test.requests[request].OrderSN] = append(told[test.requests[request].OrderSN], items...)
			}
			committed := w.tx(func(tx *gorm.DB) error {
				err = stock.Rollback(t.Context(), tx, test.requests, test.options)
				if batch, ok := errors.AsType[*stock.BatchError](err); ok && batch.OthersReleased {
					return nil
				}
				return err
			})
			// then the blame names whom it must, and the others are released or not
			if test.others || test.blamed == nil {
				require.OK(t, committed)
			}
			if test.blamed != nil {
				wantBlame(t, err, test.blamed)
				if batch, _ := errors.AsType[*stock.BatchError](err); batch.OthersReleased != test.others {
					t.Errorf("others released: %v, want %v", batch.OthersReleased, test.others)
				}
			}
			if got := told[order("good")]; slices.Equal(got, []stock.Item{item(1, 1), item(2, 2)}) != test.released {
				t.Errorf("told of what was released: %v", told)
			}
			want := "1×1 reserved, 2×2 reserved"
			if test.released {
				want = "1×1 released stock.rollback/g, 2×2 released stock.rollback/g"
			}
			w.wantReservations(order("good"), want)
		})
	}
}

// A request that is blamed must not shadow another one of the same order.
func TestRollbackJudgesARequestAsIfTheBlamedOneWereAbsent(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(1, 1), item(2, 2)))
	wrong, right := message("a", "wrong", item(1, 1), item(2, 9)), message("a", "right", item(1, 1), item(2, 2))
	wantBlame(t, w.rollback(stock.Options{}, wrong, right), map[int]error{0: stock.ErrQuantity})
	require.OK(t, w.rollback(stock.Options{}, right))
	w.wantReservations("a", "1×1 released stock.rollback/right, 2×2 released stock.rollback/right")
}

func TestRefusingRollbackStopsTheLateDeduction(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		items   []stock.Item
		refused string
	}{
		{"items", []stock.Item{item(1, 7), item(2, 1)}, "1×7 refused stock.rollback/k1, 2×1 refused stock.rollback/k1"},
		{"whole order", nil, "0×0 refused stock.rollback/k1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, 1, 2)
			require.OK(t, w.rollback(refuse, message("a", "k1", test.items...), message("a", "k2", test.items...)))
			w.wantReservations("a", test.refused)
			assert.Error(t, w.reserve("a", item(1, 7)), stock.ErrRefused, "Reserve after the rollback")
			assert.Error(t, w.confirm("a"), stock.ErrRefused, "Confirm after the rollback")
			for _, o := range []stock.Options{refuse, {Empty: stock.Retry}} { // refused is done, whatever the policy is now
				require.OK(t, w.rollback(o, message("a", "k3", item(1, 7))))
			}
			require.OK(t, w.rollback(stock.Options{Empty: stock.Retry}, message("a", "k4")))
			w.wantReservations("a", test.refused)
			w.wantAmount(1, 100)
		})
	}
}

// A rollback without items ends the order, also one that is reserved in parts: what had been reserved goes back, and
// what comes late is refused, whichever sku it is.
func TestRefusingRollbackOfAWholeOrderStopsItsLateParts(t *testing.T) {
	w := newWorld(t, 1, 2, 3)
	retry := stock.Options{Empty: stock.Retry}
	part := func(order string) { require.OK(t, w.reserve(order, item(2, 5))) }
	for name, test := range map[string]struct {
		given func(order string)
		want  string
	}{
		"a part is reserved": {part, "2×5 released stock.rollback/k1"},
		"a part was released before": {func(order string) {
			part(order)
			require.OK(t, w.rollback(refuse, message(order, "k0", item(2, 5))))
		}, "2×5 released stock.rollback/k0"},
		"a part was refused before": {func(order string) {
			require.OK(t, w.rollback(refuse, message(order, "k0", item(2, 5))))
		}, "2×5 refused stock.rollback/k0"},
		"a part is deducted, another reserved": {func(order string) {
			part(order)
			require.OK(t, w.confirm(order))
			require.OK(t, w.reserve(order, item(3, 1)))
		}, "2×5 deducted, 3×1 released stock.rollback/k1"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			test.given(name)
			require.OK(t, w.rollback(refuse, message(name, "k1")))
			want := "0×0 refused stock.rollback/k1, " + test.want
			w.wantReservations(name, want)
			for _, late := range []int64{1, 4} { // before and behind the skus that the order has
				assert.Error(t, w.reserve(name, item(late, 7)), stock.ErrRefused, "Reserve of sku %d after the rollback", late)
			}
			w.wantAmount(1, 100)
			require.OK(t, w.rollback(refuse, message(name, "k2"), message(name, "k3", item(1, 7))))
			require.OK(t, w.rollback(retry, message(name, "k4"), message(name, "k5", item(1, 7))))
			w.wantReservations(name, want)
		})
	}
	w.t = t
	// what was given back says so; an order that is deducted altogether is blamed and not marked; with retry a late part
	// is another matter
	again, late := w.reserve("a part is reserved", item(2, 5)), w.confirm("a part is reserved")
	assert.That(t, is(again, stock.ErrReleased) && is(late, stock.ErrReleased),
		"after the rollback: Reserve %v, Confirm %v, want ErrReleased", again, late)
	require.OK(t, w.reserve("final", item(1, 5)))
	require.OK(t, w.confirm("final"))
	wantBlame(t, w.rollback(refuse, message("final", "k1")), map[int]error{0: stock.ErrDeducted})
	w.wantReservations("final", "1×5 deducted")
	require.OK(t, w.reserve("parts", item(2, 5)))
	require.OK(t, w.rollback(retry, message("parts", "k1")))
	require.OK(t, w.reserve("parts", item(1, 7)))
	w.wantReservations("parts", "1×7 reserved, 2×5 released stock.rollback/k1")
}

func TestRefusingRollbackReleasesWhatIsReserved(t *testing.T) {
	w := newWorld(t, 1, 2)
	require.OK(t, w.reserve("a", item(1, 7)))
	require.OK(t, w.rollback(refuse, message("a", "k1", item(1, 7), item(2, 1)), message("b", "k2", item(2, 2))))
	w.wantReservations("a", "1×7 released stock.rollback/k1, 2×1 refused stock.rollback/k1")
	w.wantReservations("b", "2×2 refused stock.rollback/k2")
	w.wantAll(100, 1, 2)
}

// More of everything than one statement takes; neighbouring skus that a float64 cannot tell apart.
func TestRollbackOfAHugeBatch(t *testing.T) {
	w := newWorld(t)
	const messages, skus, base = 2000, 1000, int64(math.MaxInt64 - 1000)
	for sku := range int64(skus) {
		w.goods(sku, base+sku)
	}
	requests := make([]stock.Request, messages)
	want := make([]int64, skus)
	for i := range requests {
		a, b := int64(i%skus), int64((i*7+1)%skus)
		q := int64(i%9 + 1)
		requests[i] = message(fmt.Sprintf("order-%d", i), fmt.Sprintf("key-%d", i), item(base+a, q))
		want[a] += q
		if a != b {
			requests[i].Items = append(requests[i].Items, item(base+b, 1))
			want[b]++
		}
	}
	fill(w, requests)
	slices.Reverse(requests)
	require.OK(t, w.rollback(stock.Options{}, requests...))
	for sku := range int64(skus) {
		w.wantAmount(base+sku, sku+want[sku])
	}
	assert.Is(t, stack.Number(t, w.db, `SELECT COUNT(*) FROM stock_reservation
		WHERE status <> 2 OR rollback_key <> REPLACE(order_sn, 'order', 'key')`), 0, "rows not released by their own message")
}

func TestRollbackOfTheLargestMessages(t *testing.T) {
	w := newWorld(t)
	items := make([]stock.Item, 1000)
	for i := range items {
		w.goods(10, int64(i)+1)
		items[i] = item(int64(i)+1, 2)
	}
	require.OK(t, w.reserve("a", items...))
	w.wantAmount(1000, 8)
	wantBlame(t, w.rollback(stock.Options{}, message("a", "k1", items...), message("b", "k2", items...)),
		map[int]error{1: stock.ErrNoReservation})
	w.wantAmount(1, 8)
	require.OK(t, w.rollback(refuse, message("a", "k1", items[:999]...), message("b", "k2", items...)))
	w.wantAmount(999, 10)
	w.wantAmount(1000, 8)
	assert.Error(t, w.reserve("b", item(500, 1)), stock.ErrRefused, "Reserve")
}

func TestRollbackOfNothing(t *testing.T) {
	w := newWorld(t)
	require.OK(t, w.tx(func(tx *gorm.DB) error { return stock.Rollback(t.Context(), tx, nil, refuse) }))
}
