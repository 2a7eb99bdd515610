package rabbit

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"
)

// ledger knows the deliveries of a subscription, from the moment when they come from the socket until they are settled:
// the goroutine that reads it adds to the ledger. With a budget it weighs them.
//
// The broker closes a channel, with all its unacked messages, when a tag is settled twice or was never delivered, and
// the client reports nothing; so it is refused here first. Tags of a channel count up from 1 without gaps.
type ledger struct {
	budget *Budget // nil: there is room for everything

	mu      sync.Mutex
	open    []entry // by tag; those that are settled stay among them for a while; guarded by mu
	gone    int     // how many of open are settled; guarded by mu
	came    uint64  // the highest tag that came; guarded by mu
	handed  uint64  // the highest tag that can be settled; guarded by mu
	held    int64   // the weight of what is open, but for the large one; guarded by mu
	large   uint64  // the delivery that is larger than a share, or 0; guarded by mu
	crowded bool    // another one came while that was there; guarded by mu
}

// entry is one delivery.
type entry struct {
	tag     uint64
	came    time.Time
	headers Table // until it is collected
	weight  int64
	shed    bool // its body was dropped
	gone    bool // settled
}

// admit takes in a delivery that comes, and reports whether there is room for it. If not, its body must be dropped.
func (l *ledger) admit(tag uint64, weight int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := entry{tag: tag, came: time.Now()}
	if l.budget != nil {
		e.weight, e.shed = l.weigh(tag, weight)
	}
	l.held += e.weight
	l.open, l.came = append(l.open, e), tag
	return !e.shed
}

// weigh is what a delivery adds to what is held, if it is not shed. The caller holds mu.
func (l *ledger) weigh(tag uint64, weight int64) (adds int64, shed bool) {
	share := l.budget.share
	switch {
	case weight > share && l.large == 0: // it comes through alone, which says nothing of the others
		l.large = tag
		return 0, false
	case weight > share:
		l.crowded, shed = true, true
	case l.held+weight > share:
		shed = true
	default:
		adds = weight
	}
	l.budget.saw(min(weight, share))
	return adds, shed
}

// keep notes the headers of a delivery.
func (l *ledger) keep(tag uint64, headers Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(tag); e != nil {
		e.headers = headers
	}
}

// take is what is known of a delivery beside what the client tells; the headers only once.
func (l *ledger) take(tag uint64) (e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.find(tag); found != nil {
		e, found.headers = *found, nil
	}
	return e
}

// hand notes that all tags up to last can be settled.
func (l *ledger) hand(last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handed = max(l.handed, last)
}

// settle takes in that a delivery is settled, or with multiple all up to it, and says how many these were. It refuses
// many when one of them was shed: nobody has seen it.
func (l *ledger) settle(tag uint64, multiple bool) (n uint64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, found := l.at(tag)
	if !found || l.open[i].gone || tag > l.handed {
		return 0, fmt.Errorf("%w: %d", ErrNotOutstanding, tag)
	}
	some := l.open[i : i+1]
	if multiple {
		some = l.open[:i+1]
		if i := slices.IndexFunc(some, func(e entry) bool { return e.shed && !e.gone }); i >= 0 {
			return 0, fmt.Errorf("%w: nobody has seen %d, below %d", ErrNotOutstanding, some[i].tag, tag)
		}
	}
	for i := range some {
		if e := &some[i]; !e.gone {
			n++
			e.gone = true
			l.lighten(e)
		}
	}
	l.gone += int(n)
	l.sweep()
	return n, nil
}

// leading is how many of tags, which ascend, are the first that are unsettled, without a gap between them.
func (l *ledger) leading(tags []uint64) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if n == len(tags) || !e.gone && e.tag != tags[n] {
			break
		}
		if !e.gone {
			n++
		}
	}
	return n
}

// unload takes in that the body of an unsettled delivery is in memory no more.
func (l *ledger) unload(tag uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.find(tag); e != nil && !e.gone {
		l.lighten(e)
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

// sweep takes out what is settled: from the front at once, elsewhere when it is most of all, for one delivery may stay
// unsettled while millions after it are settled. The caller holds mu.
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

// at is where tag stands. The caller holds mu.
func (l *ledger) at(tag uint64) (int, bool) {
	return slices.BinarySearchFunc(l.open, tag, func(e entry, tag uint64) int { return cmp.Compare(e.tag, tag) })
}

// find is the entry of tag, if it is known. The caller holds mu.
func (l *ledger) find(tag uint64) *entry {
	if i, found := l.at(tag); found {
		return &l.open[i]
	}
	return nil
}

// holds is the weight of what is open up to a tag. A large one that keeps others of its kind away counts as everything.
func (l *ledger) holds(upTo uint64) (weight int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.open {
		if e.tag <= upTo {
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
	for _, e := range l.open {
		if e.tag > after && !e.gone {
			window--
		}
	}
	return window <= 0
}

func (l *ledger) last() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.came
}
