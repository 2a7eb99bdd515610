package operator_test

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
)

// A message whose items another message had released already is success without an effect; what the order has reserved
// besides is nobody's mistake.
func TestWhatAMessageDidNotNameIsNotMissed(t *testing.T) {
	w := newShop(t)
	w.reservation("A", 1, 2, "m-1", time.Hour) // released by m-1, partly cancelled
	w.success(group, "m-1", time.Hour)
	w.success(group, "A", 30*time.Minute) // items: sku 1 only, which was released
	w.reservation("A", 2, 1, "", 2*time.Hour)
	w.wantFound(w.run(nil))
}

// A message without items that refuses also marks its order as a whole. That is no part that it released: what is
// reserved beside the mark, and was before the message took effect, was put back by a hand.
func TestTheMarkOfAWholeOrderHidesNoReservation(t *testing.T) {
	w := newShop(t)
	w.reservation("A", 0, 4, "A", time.Hour)
	w.reservation("A", 1, 1, "", 2*time.Hour)
	w.success(group, "A", time.Hour)
	w.wantFound(w.run(nil), "success_not_released A")
}

// The success row of a message that released and marked an order is gone: that is one finding, about what it released,
// and adopting it mends it.
func TestTheMarkOfAWholeOrderIsNoFindingOfItsOwn(t *testing.T) {
	w := newShop(t)
	w.reservation("A", 0, 4, "m-1", time.Hour)
	w.reservation("A", 1, 2, "m-1", time.Hour)
	w.reservation("B", 0, 4, "m-2", time.Hour) // nothing had been reserved
	r := w.run(nil)
	w.wantFound(r, "released_without_success m-1", "released_without_success m-2")
	if r.Findings[0].Was != "released" || r.Findings[1].Was != "refused" {
		t.Errorf("the orders are said to be %s and %s by them, want released and refused", r.Findings[0].Was,
			r.Findings[1].Was)
	}
	w.run(func(o *operator.Reconciliation) { o.Adopt = true })
	w.wantFound(w.run(nil))
}
