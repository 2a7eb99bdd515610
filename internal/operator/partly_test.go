package operator_test

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
)

// What a message did not name is not missed: one whose items another message had released already is success without an
// effect, and what its order has reserved besides is nobody's mistake (A). A message without items that refuses also
// marks its order as a whole, which is no part that it released: what is reserved beside the mark, and was before the
// message took effect, was put back by a hand (B). The success row of a message that released and marked an order is
// gone: that is one finding, about what it released (C, and D of which nothing had been reserved), and adopting it
// mends it.
func TestTheMarkOfAWholeOrderHidesNothingAndIsNoFindingOfItsOwn(t *testing.T) {
	w := newShop(t)
	w.reservation("A", 1, 2, "m-1", time.Hour) // released by m-1, partly cancelled
	w.success(group, "m-1", time.Hour)
	w.success(group, "A", 30*time.Minute) // items: sku 1 only, which was released
	w.reservation("A", 2, 1, "", 2*time.Hour)
	w.reservation("B", 0, 4, "B", time.Hour)
	w.reservation("B", 1, 1, "", 2*time.Hour)
	w.success(group, "B", time.Hour)
	w.reservation("C", 0, 4, "m-2", time.Hour)
	w.reservation("C", 1, 2, "m-2", time.Hour)
	w.reservation("D", 0, 4, "m-3", time.Hour)
	r := w.run(nil)
	w.wantFound(r, "released_without_success m-2", "released_without_success m-3", "success_not_released B")
	if r.Findings[0].Was != "released" || r.Findings[1].Was != "refused" {
		t.Errorf("the orders are said to be %s and %s by them, want released and refused", r.Findings[0].Was,
			r.Findings[1].Was)
	}
	w.run(func(o *operator.Reconciliation) { o.Adopt = true })
	w.wantFound(w.run(nil), "success_not_released B")
}
