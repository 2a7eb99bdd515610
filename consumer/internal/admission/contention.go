// Package admission is what the workers of a process know together of what fails and what waits: whether a message may
// be tried now, beside whom, and what its trouble costs. It must not know rows, the broker or the handler, nor do I/O.
package admission

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// Contention is what is known of locks of others that messages have waited for in vain. No server tells everybody on
// which rows they are, so they are known by what those who met them have in common: values that their bodies name, and
// that nobody names who was applied meanwhile. Who names one steps aside, into a retry queue and without an attempt,
// and the rest flows; from time to time one of them tries.
//
// That is a guess: who steps aside for nothing comes back later. Nobody does while all wait, because nothing would be
// gained by going round.
type Contention[M Message] struct {
	Patience time.Duration // with locks of others, where none is known
	Memory   time.Duration // after the last wait in vain
	Size     int           // of a batch

	mu      sync.Mutex
	since   time.Time            // the first wait in vain; guarded by mu
	met     time.Time            // the last one; guarded by mu
	applied time.Time            // the last commit; guarded by mu
	took    time.Duration        // what a transaction takes of late, or more; guarded by mu
	room    int                  // messages that may share a transaction; guarded by mu
	marks   map[uint64]mark      // guarded by mu
	common  bool                 // two messages have named the same; guarded by mu
	trial   time.Time            // when one of them may try; guarded by mu
	passed  map[uint64]time.Time // when somebody was applied who named it; guarded by mu
}

// mark is a value that messages named which have waited in vain, each by itself.
type mark struct {
	since time.Time
	met   int
	by    dedup.Identity // the last one
}

const (
	// metInCommon is after how many waits whoever names the same steps aside.
	metInCommon = 2
	// trialRests is for how many times as long as a trial took, in vain, there is no other one, or for less: a trial that
	// waits, a second at least on MySQL, has rows that all others need, and each daemon has trials of its own.
	trialRests = 12
	// searchedFor is how long the workers take turns to find out what that is, in waits where no such lock is known.
	searchedFor = 4
	// passedFor is how long it is known what those named who were applied, if that has room.
	passedFor = 10 * time.Second
	// maxMarks and maxPassed bound the memory.
	maxMarks, maxPassed = 10_000, 100_000
)

// ShortestLockWait is the shortest wait for a lock that MySQL knows. What met others sooner than that has waited for
// nobody.
const ShortestLockWait = time.Second

// Try makes one try of a transaction of items, and takes in how it ended; inVain: locks of others were in the way.
func (o *Contention[M]) Try(
	ctx context.Context, items []M, try func(context.Context) decide.Told,
) (said decide.Told, inVain bool) {
	patience := o.bound()
	if patience < o.Patience {
		ctx = mysqldb.WithLockWait(ctx, patience)
	}
	began := time.Now()
	said = try(ctx)
	switch took := time.Since(began); {
	case said.End == decide.Committed:
		o.pass(items, said.Blamed, took)
	case took < patience: // a deadlock is noticed sooner
	case said.End == decide.Met, mysqldb.Classify(said.Err) == mysqldb.FaultContention:
		inVain = true
		o.meet(items, took)
	}
	return said, inVain
}

// bound is how long a transaction may wait for a lock. Where others are applied, who waits for far longer than
// transactions take does not wait for one of ours.
func (o *Contention[M]) bound() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known() || time.Since(o.since) > 2*o.Patience && time.Since(o.applied) > 2*o.Patience {
		return o.Patience
	}
	return min(max(3*o.took, ShortestLockWait).Truncate(time.Second), o.Patience)
}

// known reports whether there are any. The caller holds mu.
func (o *Contention[M]) known() bool { return time.Since(o.met) < o.Memory }

// others reports whether there are any and others are applied beside them. The caller holds mu.
func (o *Contention[M]) others() bool {
	return o.known() && o.applied.After(o.since) && time.Since(o.applied) < 2*o.Patience
}

// asked is what a question says that needs mu.
func asked(mu *sync.Mutex, question func() bool) bool {
	mu.Lock()
	defer mu.Unlock()
	return question()
}

// Flow reports whether others are applied beside such locks, for whom whoever meets it makes room at once.
func (o *Contention[M]) Flow() bool { return asked(&o.mu, o.others) }

// Unclear reports whether it may soon be known whose way a lock is in. Until then the workers try one after the
// other: who waits for it holds rows for which others would wait in vain, and be taken for those who met it.
func (o *Contention[M]) Unclear() bool { return asked(&o.mu, o.searched) }

// searched is Unclear. The caller holds mu.
func (o *Contention[M]) searched() bool {
	return o.known() && !o.common && time.Since(o.since) < searchedFor*o.Patience
}

// Stand reports whether messages step aside, or may have to when they come back.
func (o *Contention[M]) Stand() bool {
	return asked(&o.mu, func() bool {
		for _, m := range o.marks {
			if m.met >= metInCommon {
				return o.known()
			}
		}
		return false
	})
}

// meet takes in that items have waited in vain.
func (o *Contention[M]) meet(items []M, took time.Duration) {
	if len(items) == 1 {
		named(items[0])
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !o.known() {
		o.since, o.room, o.took, o.common = now, o.Size, 0, false
		o.marks, o.passed = map[uint64]mark{}, map[uint64]time.Time{}
	}
	o.met = now
	if len(items) > 1 {
		o.room = decide.FewAtOnce
		return
	}
	o.trial = now.Add(min(trialRests*took, 4*o.Patience))
	k, _, values := items[0].Said()
	if len(o.marks)+len(*values) > maxMarks {
		clear(o.marks)
	}
	for _, v := range *values {
		if m, marked := o.marks[v]; marked {
			o.common = o.common || m.by != k
			o.marks[v] = mark{m.since, m.met + 1, k}
		} else if now.Sub(o.passed[v]) > passedFor {
			o.marks[v] = mark{now, 1, k}
		}
	}
}

// pass takes in that items are applied, but for the blamed.
func (o *Contention[M]) pass(items []M, blamed map[int]error, took time.Duration) {
	o.read(items...)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.applied = time.Now()
	if !o.known() {
		return
	}
	if o.met.Before(o.applied.Add(-took)) { // else it may have waited for one of ours that waited in vain
		o.took += (took - o.took) / 8
	}
	if len(items) >= o.room && !o.searched() {
		o.room *= 2
	}
	for i, m := range items {
		if blamed[i] != nil {
			continue
		}
		_, _, values := m.Said()
		for _, v := range *values {
			if len(o.passed) >= maxPassed {
				clear(o.passed)
			}
			o.passed[v] = o.applied
			if o.marks[v].met >= metInCommon {
				o.trial = time.Time{} // the lock is gone: the next may be as lucky
			}
			delete(o.marks, v)
		}
		*values = nil // it has a new life only as another delivery
	}
}

// Most is how many of n messages may share a transaction.
func (o *Contention[M]) Most(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known() {
		return min(n, o.room)
	}
	return n
}

// Part tells those of items that should step aside from the rest; at most one of them is the trial.
func (o *Contention[M]) Part(items []M) (rest, aside, trial []M) {
	o.read(items...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.others() || len(o.marks) == 0 {
		return items, nil, nil
	}
	for _, m := range items {
		switch now := time.Now(); {
		case !o.marked(m):
			rest = append(rest, m)
		case trial == nil && now.After(o.trial):
			trial, o.trial = []M{m}, now.Add(4*o.Patience)
		default:
			aside = append(aside, m)
		}
	}
	return rest, aside, trial
}

// marked reports whether a message names what several have in common that waited in vain. The caller holds mu.
func (o *Contention[M]) marked(m M) bool {
	return slices.ContainsFunc(named(m), func(v uint64) bool { return o.marks[v].met >= metInCommon })
}

// Age is how long ago the first of those waited in vain who named what this message does.
func (o *Contention[M]) Age(m M) (age time.Duration) {
	o.read(m)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known() {
		return 0
	}
	for _, v := range named(m) {
		if met, marked := o.marks[v]; marked {
			age = max(age, time.Since(met.since))
		}
	}
	return age
}

// read reads what messages name, if there are any. The caller does not hold mu: nobody waits for that.
func (o *Contention[M]) read(all ...M) {
	if !asked(&o.mu, o.known) {
		return
	}
	for _, m := range all {
		named(m)
	}
}
