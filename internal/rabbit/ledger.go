package rabbit

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// ledger knows what the unsettled deliveries of a subscription weigh, from the moment when they come from the socket:
// the goroutine that reads it adds to the ledger. Without a budget it knows only what was set aside.
type ledger struct {
	budget *Budget // nil: nothing is weighed

	announced atomic.Uint64 // the highest tag of which a method frame came

	mu      sync.Mutex
	open    []entry          // by tag; those that are settled stay among them for a while; guarded by mu
	gone    int              // how many of open are settled; guarded by mu
	came    uint64           // the highest tag that came; guarded by mu
	held    int64            // the weight of what is open, but for the large one; guarded by mu
	large   uint64           // the delivery that is larger than a share, or 0; guarded by mu
	crowded bool             // another one came while that was there; guarded by mu
	aside   map[uint64]Table // headers that the client could not read beside the others, by tag; guarded by mu
}

// entry is one delivery.
type entry struct {
	tag    uint64
	came   time.Time
	weight int64
	shed   bool // its body was dropped
	gone   bool // settled
}

// admit takes in a delivery that comes, and reports whether there is room for it. If not, its body must be dropped.
func (l *ledger) admit(tag uint64, weight int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	share := l.budget.share
	e := entry{tag: tag, came: time.Now()}
	switch {
	case weight > share && l.large == 0:
		l.large = tag
	case weight > share:
		l.crowded, e.shed = true, true
	case l.held+weight > share:
		e.shed = true
	default:
		e.weight = weight
		l.held += weight
	}
	if weight <= share || e.shed { // one that comes through alone says nothing of the others
		l.budget.saw(min(weight, share))
	}
	l.open = append(l.open, e)
	l.came = tag
	return !e.shed
}

// keep notes headers that the client could not read beside the others of a delivery.
func (l *ledger) keep(tag uint64, aside Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.aside == nil {
		l.aside = map[uint64]Table{}
	}
	l.aside[tag] = aside
}

// take gives what keep noted, once, and says when the delivery came: now, if it is not weighed.
func (l *ledger) take(tag uint64) (aside Table, came time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	aside = l.aside[tag]
	delete(l.aside, tag)
	if i, found := l.find(tag); found {
		return aside, l.open[i].came
	}
	return aside, time.Now()
}

// isShed reports whether the body of a delivery was dropped.
func (l *ledger) isShed(tag uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := l.find(tag)
	return found && l.open[i].shed
}

// passes refuses to settle many deliveries at once when one of them was shed: nobody has seen it.
func (l *ledger) passes(tag uint64, multiple bool) error {
	if !multiple {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.tag <= tag && e.shed && !e.gone {
			return fmt.Errorf("%w: nobody has seen %d, below %d", ErrNotOutstanding, e.tag, tag)
		}
	}
	return nil
}

// settle takes in that a delivery is settled, or with multiple all up to it.
func (l *ledger) settle(tag uint64, multiple bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := l.find(tag)
	switch {
	case multiple:
		for j := range l.open[:min(i+1, len(l.open))] {
			if l.open[j].tag <= tag {
				l.strike(&l.open[j])
			}
		}
	case found:
		l.strike(&l.open[i])
	}
	l.sweep()
}

// unload takes in that the body of an unsettled delivery is in memory no more.
func (l *ledger) unload(tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i, found := l.find(tag); found && !l.open[i].gone {
		l.lighten(&l.open[i])
	}
}

// lighten takes off what an entry weighs. The caller holds mu.
func (l *ledger) lighten(e *entry) {
	l.held -= e.weight
	e.weight = 0
	if e.tag == l.large {
		l.large, l.crowded = 0, false
	}
}

// strike notes that an entry is settled. The caller holds mu.
func (l *ledger) strike(e *entry) {
	if e.gone {
		return
	}
	e.gone = true
	l.gone++
	l.lighten(e)
}

// sweep takes out what is settled: from the front at once, elsewhere when it is most of all. The caller holds mu.
func (l *ledger) sweep() {
	n := 0
	for n < len(l.open) && l.open[n].gone {
		n++
	}
	l.open, l.gone = l.open[n:], l.gone-n
	if l.gone > len(l.open)/2 {
		l.open = slices.DeleteFunc(l.open, func(e entry) bool { return e.gone })
		l.gone = 0
	}
}

// find is where tag stands. The caller holds mu.
func (l *ledger) find(tag uint64) (int, bool) {
	return slices.BinarySearchFunc(l.open, tag, func(e entry, tag uint64) int {
		switch {
		case e.tag < tag:
			return -1
		case e.tag > tag:
			return 1
		}
		return 0
	})
}

// holds is the weight of what is open up to a tag. A large one that keeps others of its kind away counts as everything.
func (l *ledger) holds(upTo uint64) (weight int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.tag > upTo {
			break
		}
		if !e.gone {
			weight += e.weight
		}
	}
	if l.crowded && l.large <= upTo {
		weight = max(weight, l.budget.share)
	}
	return weight
}

// full reports whether so many deliveries after a tag are open: then the broker has nothing more on its way to a
// consumer that may have no more.
func (l *ledger) full(after uint64, window int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for i := len(l.open) - 1; i >= 0 && l.open[i].tag > after; i-- {
		if !l.open[i].gone {
			open++
		}
	}
	return open >= window
}

func (l *ledger) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}
