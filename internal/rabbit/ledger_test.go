package rabbit

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// The ledger agrees with a plain set of tags, whatever is settled in whatever order.
func TestLedgerAgreesWithASetOfTags(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		var l ledger
		open, last := map[uint64]bool{}, uint64(0)
		for range 60 {
			if r.IntN(3) == 0 {
				for range r.Uint64N(5) {
					last++
					open[last] = true
					l.admit(last, 1)
				}
				l.hand(last)
			}
			some := slices.Sorted(maps.Keys(open)) // as they are, with one taken out
			if len(some) > 0 {
				i := r.IntN(len(some))
				require.Is(t, l.leading(some), len(some), "of all that are open lead")
				require.Is(t, l.leading(slices.Delete(some, i, i+1)), i, "lead the one that is not among them")
			}
			tag, multiple := r.Uint64N(last+3), r.IntN(4) == 0
			n, err := l.settle(tag, multiple)
			if open[tag] != (err == nil) || err != nil && !errors.Is(err, ErrNotOutstanding) {
				t.Fatalf("settle %d (multiple %v) of %v = %v", tag, multiple, open, err)
			}
			before := len(open)
			maps.DeleteFunc(open, func(k uint64, _ bool) bool { return err == nil && (k == tag || multiple && k < tag) })
			require.Is(t, int(n), before-len(open), "settle %d (multiple %v) settled %d", tag, multiple, n)
		}
	}
}

// One delivery that is held must not make the ledger remember every delivery after it, and what was not handed out
// cannot be settled.
func TestLedgerStaysSmallBehindADeliveryThatIsHeld(t *testing.T) {
	var l ledger
	l.admit(1, 1)
	for tag := uint64(2); tag < 10_000; tag++ {
		l.admit(tag, 1)
		if _, err := l.settle(tag, false); !errors.Is(err, ErrNotOutstanding) {
			t.Fatalf("settling what is not handed out: %v", err)
		}
		l.hand(tag)
		require.Get(l.settle(tag, false))(t)
	}
	assert.AtMost(t, len(l.open), 2, "entries")
}
