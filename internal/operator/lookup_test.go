package operator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/letters"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// orderOf is the order that a body names.
func orderOf(body []byte) (string, bool) {
	var m struct {
		Order string `json:"order_sn"`
	}
	err := json.Unmarshal(body, &m)
	return m.Order, err == nil && m.Order != ""
}

func keys(t operator.Told) (all []string) {
	for _, m := range t.Messages {
		all = append(all, m.Row.Key+" "+m.Row.Status.String())
	}
	return all
}

func (w *world) order(o operator.Lookup, order string) operator.Told {
	w.T.Helper()
	return require.Get(o.OfOrder(w.T.Context(), order))(w.T)
}

func (w *world) ofKey(o operator.Lookup, key string) operator.Told {
	w.T.Helper()
	return require.Get(o.OfKey(w.T.Context(), key, ""))(w.T)
}

func TestAnOrdersMessagesAreFoundByReservationKeyAndBody(t *testing.T) {
	w := newWorld(t)
	w.reservation("A", 1, 2, "by-reservation", 0)
	w.reservation("A", 2, 2, "pruned", 0)
	w.reservation("A", 3, 1, "", 0)
	w.success(group, "by-reservation", 0)
	w.success(group, "A", 0) // its key is the order's number
	for _, dead := range [][2]string{{"by-body", `{"order_sn":"A"}`}, {"by-escaped-body", `{"order_sn":"\u0041"}`},
		{"unreadable", `{"order_sn":"A",`}, {"another", `{"order_sn":"AB","note":"A"}`}} {
		w.Rows(dedup.ReasonPermanent, "no", dead[0])
		w.Exec("UPDATE consumer_log SET msg_body = ? WHERE msg_key = ?", dead[1], dead[0])
	}
	told := w.order(w.lookup(), "A")
	want := []string{"by-reservation success", "pruned absent", "A success", "by-body dead", "by-escaped-body dead",
		"unreadable dead"}
	assert.Equal(t, keys(told), want, "found")
	assert.That(t, len(told.Reservations) == 3 && len(told.Messages[0].Reservations) == 3 &&
		len(told.Messages[3].Reservations) == 3 && len(told.Unseen) == 1, "reservations %v, unseen %q", told.Reservations,
		told.Unseen)
	few := w.lookup()
	few.Most = 1
	if told := w.order(few, "A"); !told.More || !strings.Contains(told.Unseen[0], "only the latest 1 of each status") {
		t.Errorf("%+v; want that more rows were not looked into", told)
	}
	for _, tc := range []struct{ among, want []string }{
		{nil, []string{"A", "by-body", "by-escaped-body", "by-reservation", "pruned", "unreadable"}},
		{[]string{"by-body", "another", "A"}, []string{"A", "by-body"}},
	} {
		of := w.preview(operator.KindReplay, deadletter.Filter{Order: "A", Keys: tc.among}).Filter
		assert.Equal(t, of.Keys, tc.want, "its keys among %q", tc.among)
	}
	told = w.order(w.lookup(), "none")
	assert.That(t, len(told.Messages)+len(told.Reservations) == 0 && len(told.Unseen) != 0,
		"an unknown order: %+v; want nothing, and what may lack", told)
	_, err := (operator.Lookup{Records: w.Records, Group: group}).OfOrder(t.Context(), "A")
	assert.That(t, err != nil, "without the stock tables there is no order, and no error says so")
}

// Given a message that moves from one status to another just while its key is looked for, status by status, and so is
// in none of them when that one is asked for, then it is looked for again and found.
func TestAMessageThatMovesWhileItIsLookedForIsFound(t *testing.T) {
	w := newWorld(t)
	w.Insert(letters.Identity("k"), dedup.Failed, 0)
	proxy := stack.Proxy(t, stack.Addr(t, w.DSN))
	there := w.lookup()
	db, _ := w.Open(proxy.Through(w.DSN), dedup.OpenOptions{})
	there.Records = w.Log(db)
	asked := fmt.Appendf(nil, "consumer_status = %d", dedup.Failed)
	moved := false
	proxy.DropRequest(func(request []byte) bool { // which sees each request before the server does, and drops none
		if bytes.Contains(request, asked) && !moved {
			moved = true
			assert.OK(t, w.DB.WithContext(t.Context()).Exec("UPDATE consumer_log SET consumer_status = ?",
				int(dedup.Processing)).Error) // which was asked for before
		}
		return false
	})
	assert.Equal(t, keys(w.ofKey(there, "k")), []string{"k processing"}, "found, moved %v", moved)
	assert.Is(t, moved, true, "moved")
}

func TestReservationsOfAMessageWithoutItsOrderAreSearchedAndALimitIsSaid(t *testing.T) {
	w := newWorld(t)
	w.success(group, "m", 0)
	w.success(group, "late", 0)
	w.reservation("B", 1, 2, "m", 0)
	w.reservation("B", 2, 2, "m", 0)
	told := w.ofKey(w.lookup(), "m")
	if m := told.Messages[0]; len(m.Reservations) != 2 || !slices.Equal(m.Orders, []string{"B"}) || len(told.Unseen) != 0 {
		t.Errorf("%+v, unseen %q; want the two of order B", m, told.Unseen)
	}
	// given more reservations than are searched, and the one in question behind them
	for first := 0; first <= operator.MaxSeen; first += 10_000 {
		w.Exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) WITH RECURSIVE hundred AS (SELECT 0 AS n "+
			"UNION ALL SELECT n + 1 FROM hundred WHERE n < 99) SELECT CONCAT('o-', LPAD(? + 100 * a.n + b.n, 6, '0')), 1, 1, 1 "+
			"FROM hundred AS a, hundred AS b", first)
	}
	w.reservation("z", 1, 2, "late", 0)
	told = w.ofKey(w.lookup(), "late")
	m := told.Messages[0]
	assert.That(t, len(m.Reservations) == 0 && len(told.Unseen) == 1 && strings.Contains(told.Unseen[0], "first 100000"),
		"%+v, unseen %q; want nothing found, and that not all was searched", m, told.Unseen)
}
