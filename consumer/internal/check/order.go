package check

import "sync"

// Lock is what a transaction has locked: a message, or rows as its statement names them, with its values. One that only
// keeps others out, as a locking SELECT does, perhaps locks nothing.
type Lock struct {
	Rows    string
	Perhaps bool
	Place
}

const (
	mostOrders = 64   // transactions that are remembered
	mostLocks  = 4000 // locks that are remembered of one
)

// Orders remember in which order the last transactions have locked rows. Many goroutines may use it.
type Orders struct {
	mu   sync.Mutex
	last []order // guarded by mu
}

type order struct {
	locks []Lock
	at    map[string]int // where rows stand in locks
}

// Add takes in what a transaction has locked, in its order, and reports whether it and another one can lock each other
// out: it has locked first and later then, the other one then and later first. Two transactions can do so if, and only
// if, the first that both lock is not the same.
func (o *Orders) Add(locks []Lock) (first, then Lock, crossed bool) {
	mine := order{at: map[string]int{}}
	for _, l := range locks {
		if _, held := mine.at[l.Rows]; !held && len(mine.locks) < mostLocks {
			mine.at[l.Rows] = len(mine.locks)
			mine.locks = append(mine.locks, l)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, other := range o.last {
		one, theirs := mine.firstIn(other), other.firstIn(mine)
		if one.Rows != theirs.Rows && !one.Perhaps && !theirs.Perhaps {
			first, then, crossed = one, mine.locks[mine.at[theirs.Rows]], true
		}
	}
	o.last = append(o.last[max(0, len(o.last)+1-mostOrders):], mine)
	return first, then, crossed
}

// firstIn is the first lock of o that other has too; nothing when there is none.
func (o order) firstIn(other order) Lock {
	for _, l := range o.locks {
		if _, too := other.at[l.Rows]; too {
			return l
		}
	}
	return Lock{}
}
