package reconcile_test

import (
	"testing"
	"time"
)

// A message whose items another message had released already is success without an effect; what the order has reserved
// besides is nobody's mistake.
func TestWhatAMessageDidNotNameIsNotMissed(t *testing.T) {
	w := newWorld(t)
	w.reservation("A", 1, 2, "m-1", time.Hour) // released by m-1, partly cancelled
	w.success(group, "m-1", time.Hour)
	w.success(group, "A", 30*time.Minute) // items: sku 1 only, which was released
	w.reservation("A", 2, 1, "", 2*time.Hour)
	w.wantFound(w.run(nil))
}
