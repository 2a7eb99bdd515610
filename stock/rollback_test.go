package stock_test

import (
	"errors"
	"fmt"
	"math"
	"os"
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

// sentinels are the errors by their words.
var sentinels = map[string]error{
	"": nil, "invalid": stock.ErrInvalid, "quantity": stock.ErrQuantity, "deducted": stock.ErrDeducted,
	"no reservation": stock.ErrNoReservation, "out of stock": stock.ErrOutOfStock, "refused": stock.ErrRefused,
	"released": stock.ErrReleased, "unknown sku": stock.ErrUnknownSKU,
}

// play makes calls, each of which may end in ": ERROR", of the first request where there are several: "reserve ORDER
// ITEMS", "confirm ORDER", "rollback REQUESTS", and "refuse REQUESTS", which rolls back with that policy. A request is
// ORDER/KEY or ORDER/TAG/KEY with items. Compared are "ORDER is ROWS" (or "nothing"), "left
// AMOUNTS" and "versions NUMBERS" of all goods, and "released N" rows.
func (w *world) play(steps ...string) {
	w.t.Helper()
	for _, step := range steps {
		call, wrong, _ := strings.Cut(step, ": ")
		name, args, _ := strings.Cut(call, " ")
		want := sentinels[wrong]
		if order, rows, is := strings.Cut(call, " is "); is {
			rows = strings.TrimPrefix(rows, "nothing")
			w.wantReservations(order, strings.ReplaceAll(rows, " k", " stock.rollback/k"))
			continue
		}
		switch name {
		case "left", "versions":
			column := map[string]string{"left": "amount", "versions": "version"}[name]
			got := stack.One[string](w.t, w.db, "SELECT GROUP_CONCAT("+column+" ORDER BY sku_id SEPARATOR ' ') FROM stock")
			assert.Is(w.t, got, args, "%s", name)
		case "released":
			const seen = "SELECT CONCAT_WS(' ', COUNT(*), SUM(was <> 1)) FROM audit WHERE is_now = 2"
			assert.Is(w.t, stack.One[string](w.t, w.db, seen), args+" 0", "rows released, not reserved before")
		case "reserve":
			order, items := itemsOf(args)
			assert.Error(w.t, w.reserve(order, items...), want, "%s", step)
		case "confirm":
			assert.Error(w.t, w.confirm(args), want, "%s", step)
		default:
			err := w.rollback(map[string]stock.Options{"refuse": refuse}[name], requestsOf(args)...)
			if want != nil {
				wantBlame(w.t, err, map[int]error{0: want})
				continue
			}
			assert.OK(w.t, err, step)
		}
	}
}

func requestsOf(text string) (requests []stock.Request) {
	for one := range strings.SplitSeq(text, ", ") {
		id, items := itemsOf(one)
		names := strings.Split(id, "/")
		r := message(names[0], names[len(names)-1], items...)
		if len(names) == 3 {
			r.Tag = names[1]
		}
		requests = append(requests, r)
	}
	return requests
}

// itemsOf reads "NAME 1×7 2×5".
func itemsOf(text string) (name string, items []stock.Item) {
	fields := strings.Fields(text)
	for _, field := range fields[1:] {
		var it stock.Item
		_, _ = fmt.Sscanf(field, "%d×%d", &it.SKU, &it.Quantity) // without a number it is invalid
		items = append(items, it)
	}
	return fields[0], items
}

// Whatever services and rollbacks do one after the other, of a hundred pieces of each of three goods: who comes first
// has it, what comes again has no second effect, and each row says whose it is. The ways stand in testdata/ways.txt.
func TestEachWayOfAnOrderEndsInItsRows(t *testing.T) {
	t.Parallel()
	ways, name := map[string][]string{}, ""
	for line := range strings.Lines(string(require.Get(os.ReadFile("testdata/ways.txt"))(t))) {
		if step, is := strings.CutPrefix(line, "\t"); is {
			ways[name] = append(ways[name], strings.TrimSpace(step))
		} else {
			name = strings.TrimSuffix(line, ":\n")
		}
	}
	assert.AtLeast(t, len(ways), 20, "ways")
	for name, steps := range ways {
		t.Run(name, func(t *testing.T) { newWorld(t, 1, 2, 3).play(steps...) })
	}
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
	for i, sku := range skus(n) {
		items[i] = item(sku, 1)
	}
	return items
}

// skus are 1 to n.
func skus(n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = int64(i) + 1
	}
	return all
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
		requests string // as play reads them, of the orders of this case
		blamed   map[int]error
		others   bool
		released bool // order good, which the request with key g names
	}{
		{"nobody is to blame", others, "two/k, good/g", nil, false, true},
		{"nobody asked for it", no, "none/k, good/g", map[int]error{0: none}, false, false},
		{"found when looking", others, "none/k, good/g, two/k 1×5", map[int]error{0: none, 2: stock.ErrQuantity}, true, true},
		{"of the same order", others, "good/k 1×5, good/g 2×2 1×1", map[int]error{0: stock.ErrQuantity}, true, true},
		{"all", others, "none/k, nil/g", map[int]error{0: none, 1: none}, false, false},
		{"found when writing", others, "none/k, good/g, ghost/k",
			map[int]error{0: none, 2: stock.ErrUnknownSKU}, false, false},
		{"beside a refusal", refusing, "two/k 1×5, good/g, none/k 1×1", map[int]error{0: stock.ErrQuantity}, false, false},
		{"invalid", others, "/k, good/g", map[int]error{0: stock.ErrInvalid}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			order := func(name string) string { return test.name + ", " + name }
			require.OK(t, w.reserve(order("good"), item(1, 1), item(2, 2)))
			require.OK(t, w.reserve(order("two"), item(1, 1)))
			w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES (?, 99, 1, 1)", order("ghost"))
			requests := requestsOf(test.requests)
			for i, r := range requests {
				if r.OrderSN != "" {
					requests[i].OrderSN = order(r.OrderSN)
				}
			}
			// when they are rolled back beside others, and the transaction is committed if it may be
			var err error
			told := map[string][]stock.Item{}
			test.options.Released = func(request int, items []stock.Item) {
				told[requests[request].OrderSN] = append(told[requests[request].OrderSN], items...)
			}
			committed := w.tx(func(tx *gorm.DB) error {
				err = stock.Rollback(t.Context(), tx, requests, test.options)
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
			all := slices.Equal(told[order("good")], []stock.Item{item(1, 1), item(2, 2)})
			assert.Is(t, all, test.released, "told of good's release in %v", told)
			want := "1×1 reserved, 2×2 reserved"
			if test.released {
				want = "1×1 released stock.rollback/g, 2×2 released stock.rollback/g"
			}
			w.wantReservations(order("good"), want)
		})
	}
}

// More of everything than one statement takes; neighbouring skus that a float64 cannot tell apart.
func TestRollbackOfAHugeBatch(t *testing.T) {
	w := newWorld(t)
	goods := skus(1000)
	for i := range goods {
		goods[i] += math.MaxInt64 - 1001
	}
	w.goods(3, goods...)
	requests := make([]stock.Request, 2000)
	want := make([]int, len(goods))
	for i := range requests {
		a, b, q := i%len(goods), (i*7+1)%len(goods), i%9+1
		requests[i] = message(fmt.Sprintf("order-%d", i), fmt.Sprintf("key-%d", i), item(goods[a], int64(q)))
		want[a] += q
		if a != b {
			requests[i].Items = append(requests[i].Items, item(goods[b], 1))
			want[b]++
		}
	}
	fill(w, requests)
	slices.Reverse(requests)
	require.OK(t, w.rollback(stock.Options{}, requests...))
	for i, row := range stack.RowsOf(t, w.db, "SELECT amount FROM stock ORDER BY sku_id") {
		assert.Is(t, row["amount"], fmt.Sprint(3+want[i]), "amount of the sku at %d", i)
	}
	assert.Is(t, stack.Number(t, w.db, `SELECT COUNT(*) FROM stock_reservation
		WHERE status <> 2 OR rollback_key <> REPLACE(order_sn, 'order', 'key')`), 0, "rows not released by their own message")
}

func TestRollbackOfTheLargestMessages(t *testing.T) {
	w := newWorld(t)
	w.goods(10, skus(1000)...)
	items := manyItems(1000)
	require.OK(t, w.reserve("a", items...))
	w.wantAmount(1000, 9)
	wantBlame(t, w.rollback(stock.Options{}, message("a", "k1", items...), message("b", "k2", items...)),
		map[int]error{1: stock.ErrNoReservation})
	w.wantAmount(1, 9)
	require.OK(t, w.rollback(refuse, message("a", "k1", items[:999]...), message("b", "k2", items...)))
	w.wantAmount(999, 10)
	w.wantAmount(1000, 9)
	assert.Error(t, w.reserve("b", item(500, 1)), stock.ErrRefused, "Reserve")
	// and it takes nothing for free: it inserts rows of its own before it meets those of an earlier call
	require.OK(t, w.reserve("c", items[900:]...))
	assert.Error(t, w.reserve("c", items...), stock.ErrQuantity, "Reserve of more")
}
