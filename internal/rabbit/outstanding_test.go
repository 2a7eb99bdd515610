package rabbit

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// The tracker agrees with a plain set of tags, whatever is settled in whatever order.
func TestOutstandingAgreesWithASetOfTags(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var o outstanding
		open, last := map[uint64]bool{}, uint64(0)
		for range 60 {
			if r.IntN(3) == 0 {
				next := last + r.Uint64N(5)
				o.delivered(next)
				for ; last < next; last++ {
					open[last+1] = true
				}
			}
			some := slices.Sorted(maps.Keys(open)) // as they are, with one taken out
			if len(some) > 0 {
				i := r.IntN(len(some))
				if n := o.leading(some); n != len(some) {
					t.Fatalf("%d of all that are open lead, want %d", n, len(some))
				}
				if n := o.leading(slices.Delete(some, i, i+1)); n != i {
					t.Fatalf("%d lead the one that is not among them, want %d", n, i)
				}
			}
			tag, multiple := r.Uint64N(last+3), r.IntN(4) == 0
			n, err := o.settle(tag, multiple)
			if open[tag] != (err == nil) || err != nil && !errors.Is(err, ErrNotOutstanding) {
				t.Fatalf("settle %d (multiple %v) of %v = %v", tag, multiple, open, err)
			}
			before := len(open)
			for k := range open {
				if err == nil && (k == tag || multiple && k < tag) {
					delete(open, k)
				}
			}
			if int(n) != before-len(open) {
				t.Fatalf("settle %d (multiple %v) settled %d, want %d", tag, multiple, n, before-len(open))
			}
		}
	}
}

// One delivery that is held must not make the tracker remember every delivery after it.
func TestOutstandingStaysSmallBehindADeliveryThatIsHeld(t *testing.T) {
	var o outstanding
	o.delivered(1)
	for tag := uint64(2); tag < 10_000; tag++ {
		o.delivered(tag)
		if _, err := o.settle(tag, false); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.open) != 1 {
		t.Errorf("%d spans, want 1", len(o.open))
	}
}
