package consumer

import (
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/lock"
)

// lookUpSkipper learns whether messages that look new have no row. While that holds, a look into the consumer log finds
// nothing, and it is left out: the insert into the same table finds out for sure. When producers send again what Redis
// does not remember, one lost transaction in each batch would cost more than the looks.
type lookUpSkipper struct{ inARow int }

// trustedAfter is how many messages that look new must be found without a row, one after the other, before the next
// ones are not looked up.
const trustedAfter = 1000

func (n *lookUpSkipper) trusted() bool { return n.inARow >= trustedAfter }

// saw takes in what a look at the row of it found.
func (n *lookUpSkipper) saw(it *item) {
	switch {
	case !it.looksNew():
	case it.row.Status == dedup.Absent:
		n.inARow = min(n.inARow+1, trustedAfter)
	default:
		n.inARow = 0
	}
}

// reset takes in that the insert met a row nobody had looked for.
func (n *lookUpSkipper) reset() { n.inARow = 0 }

// looksNew reports whether nothing speaks for a row: it is readable, nobody else works on it or marked it, and it is
// neither delivered again nor a copy.
func (it *item) looksNew() bool {
	return it.rejected == nil && it.lock.hold != lock.HeldByOther && !it.lock.hinted() &&
		it.delivery.Count == 0 && !it.delivery.Redelivered && !it.copied.IsCopy()
}
