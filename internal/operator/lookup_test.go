package operator_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

type book struct {
	*letters.World

	o operator.Lookup
}

func newBook(t *testing.T) *book {
	t.Helper()
	w := letters.NewLog(t)
	return &book{w, operator.Lookup{Records: w.Records, Group: "g", DB: w.DB, OrderOf: orderOf}}
}

// orderOf is the order that a body names.
func orderOf(body []byte) (string, bool) {
	var m struct {
		Order string `json:"order_sn"`
	}
	err := json.Unmarshal(body, &m)
	return m.Order, err == nil && m.Order != ""
}

func (w *book) dead(k dedup.Identity, body, cause string) {
	w.T.Helper()
	w.Must(w.Records.DeadRows(w.T.Context(), []dedup.Death{{
		Entry: dedup.Entry{Identity: k, BodyHash: sha256.Sum256([]byte(body)), Body: []byte(body)}, Reason: "permanent",
		Cause: cause,
	}})...)
}

func (w *book) success(k dedup.Identity) { w.T.Helper(); w.Insert(k, dedup.Success, 0) }

func key(name string) dedup.Identity { return dedup.Identity{Group: "g", Tag: "t", Key: name} }

func keys(t operator.Told) (all []string) {
	for _, m := range t.Messages {
		all = append(all, m.Row.Key+" "+m.Row.Status.String())
	}
	return all
}

func (w *book) order(o operator.Lookup, order string) operator.Told {
	w.T.Helper()
	return require.Get(o.OfOrder(w.T.Context(), order))(w.T)
}

func (w *book) ofKey(o operator.Lookup, key string, tag ...string) operator.Told {
	w.T.Helper()
	return require.Get(o.OfKey(w.T.Context(), key, strings.Join(tag, "")))(w.T)
}

func TestAnOrdersMessagesAreFoundByReservationKeyAndBody(t *testing.T) {
	w := newBook(t)
	w.Reservation("A", 1, 2, key("by-reservation"), 0)
	w.Reservation("A", 2, 2, key("pruned"), 0)
	w.Reservation("A", 3, 1, key(""), 0)
	w.success(key("by-reservation"))
	w.success(key("A")) // its key is the order's number
	w.dead(key("by-body"), `{"order_sn":"A"}`, "no")
	w.dead(key("by-escaped-body"), `{"order_sn":"\u0041"}`, "no")
	w.dead(key("unreadable"), `{"order_sn":"A",`, "no")
	w.dead(key("another"), `{"order_sn":"AB","note":"A"}`, "no")
	told := w.order(w.o, "A")
	want := []string{"by-reservation success", "pruned absent", "A success", "by-body dead", "by-escaped-body dead",
		"unreadable dead"}
	assert.Equal(t, keys(told), want, "found")
	if len(told.Reservations) != 3 || len(told.Messages[0].Reservations) != 3 || len(told.Messages[3].Reservations) != 3 ||
		len(told.Unseen) != 1 {
		t.Errorf("reservations %v, unseen %q", told.Reservations, told.Unseen)
	}
	few := w.o
	few.Most = 1
	if told := w.order(few, "A"); !told.More || !strings.Contains(told.Unseen[0], "only the latest 1 of each status") {
		t.Errorf("%+v; want that more rows were not looked into", told)
	}
	for _, tc := range []struct{ among, want []string }{
		{nil, []string{"A", "by-body", "by-escaped-body", "by-reservation", "pruned", "unreadable"}},
		{[]string{"by-body", "another", "A"}, []string{"A", "by-body"}},
	} {
		if got, err := w.o.KeysOf(t.Context(), "A", tc.among); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("its keys among %q are %q, %v; want %q", tc.among, got, err, tc.want)
		}
	}
	if told := w.order(w.o, "none"); len(told.Messages)+len(told.Reservations) != 0 ||
		len(told.Unseen) == 0 {
		t.Errorf("an unknown order: %+v; want nothing, and what may lack", told)
	}
	if _, err := (operator.Lookup{Records: w.o.Records, Group: "g"}).OfOrder(t.Context(), "A"); err == nil {
		t.Error("without the stock tables there is no order, and no error says so")
	}
}

// Given a message that moves from one status to another just while its key is looked for, status by status, and so is
// in none of them when that one is asked for, then it is looked for again and found.
func TestAMessageThatMovesWhileItIsLookedForIsFound(t *testing.T) {
	w := newBook(t)
	w.Insert(key("k"), dedup.Failed, 0)
	proxy := stack.Proxy(t, stack.Addr(t, w.DSN))
	there := w.o
	db, _ := w.Open(proxy.Through(w.DSN), dedup.OpenOptions{})
	there.Records = w.Log(db)
	asked := fmt.Appendf(nil, "consumer_status = %d", dedup.Failed)
	moved := false
	proxy.DropRequest(func(request []byte) bool { // which sees each request before the server does, and drops none
		if bytes.Contains(request, asked) && !moved {
			moved = true
			assert.OK(t, w.o.DB.WithContext(t.Context()).Exec("UPDATE consumer_log SET consumer_status = ?",
				int(dedup.Processing)).Error) // which was asked for before
		}
		return false
	})
	assert.Equal(t, keys(w.ofKey(there, "k")), []string{"k processing"}, "found, moved %v", moved)
	assert.Is(t, moved, true, "moved")
}

func TestReservationsOfAMessageWithoutItsOrderAreSearchedAndALimitIsSaid(t *testing.T) {
	w := newBook(t)
	w.success(key("m"))
	w.success(key("late"))
	w.Reservation("B", 1, 2, key("m"), 0)
	w.Reservation("B", 2, 2, key("m"), 0)
	told := w.ofKey(w.o, "m")
	if m := told.Messages[0]; len(m.Reservations) != 2 || !slices.Equal(m.Orders, []string{"B"}) || len(told.Unseen) != 0 {
		t.Errorf("%+v, unseen %q; want the two of order B", m, told.Unseen)
	}
	// given more reservations than are searched, and the one in question behind them
	for first := 0; first <= operator.MaxSeen; first += 10_000 {
		w.Exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) WITH RECURSIVE hundred AS (SELECT 0 AS n "+
			"UNION ALL SELECT n + 1 FROM hundred WHERE n < 99) SELECT CONCAT('o-', LPAD(? + 100 * a.n + b.n, 6, '0')), 1, 1, 1 "+
			"FROM hundred AS a, hundred AS b", first)
	}
	w.Reservation("z", 1, 2, key("late"), 0)
	told = w.ofKey(w.o, "late")
	if m := told.Messages[0]; len(m.Reservations) != 0 || len(told.Unseen) != 1 ||
		!strings.Contains(told.Unseen[0], "first 100000") {
		t.Errorf("%+v, unseen %q; want nothing found, and that not all was searched", m, told.Unseen)
	}
}
