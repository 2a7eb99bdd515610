package consumer

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// contention is what is known of locks of others that messages have waited for in vain. No server tells everybody on
// which rows they are, so they are known by what those who met them have in common: values that their bodies name, and
// that nobody names who was applied meanwhile. Who names one steps aside, into a retry queue and without an attempt,
// and the rest flows; from time to time one of them tries.
//
// That is a guess: who steps aside for nothing comes back later. Nobody does while all wait, because nothing would be
// gained by going round.
type contention struct {
	patience time.Duration // with locks of others, where none is known
	memory   time.Duration // after the last wait in vain
	size     int           // of a batch

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
	// fewAtOnce is how many messages share a transaction after a wait in vain, and later twice as many with each commit.
	fewAtOnce = 8
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
	// maxNamed is how many values of a message are looked at, itself and those that its body begins with, and maxRead how
	// many bytes of that: many bodies are read in a row, and a large one must not hold up a worker.
	maxNamed, maxRead = 200, 16 << 10
)

// errStepsAside is why a message comes back later that was not tried.
var errStepsAside = errors.New("it names what messages named that waited for locks of others: it comes back, and no " +
	"attempt was counted")

func newContention(cfg Config) *contention {
	return &contention{
		patience: cfg.lockWait(), size: cfg.BatchSize,
		memory: cfg.RetryDelays[len(cfg.RetryDelays)-1] + 2*cfg.HandlerTimeout,
	}
}

// try makes one try of a transaction of items, and takes in how it ended; inVain: locks of others were in the way.
func (o *contention) try(
	ctx context.Context, items []*item, try func(context.Context) told,
) (said told, inVain bool) {
	patience := o.bound()
	if patience < o.patience {
		ctx = mysqldb.WithLockWait(ctx, patience)
	}
	began := time.Now()
	said = try(ctx)
	switch took := time.Since(began); {
	case said.finish == committed:
		o.pass(items, said.blamed, took)
	case (said.finish == met || setbackOf(said.err).contended) && took >= patience: // a deadlock is noticed sooner
		inVain = true
		o.meet(items, took)
	}
	return said, inVain
}

// bound is how long a transaction may wait for a lock. Where others are applied, who waits for far longer than
// transactions take does not wait for one of ours.
func (o *contention) bound() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known() || time.Since(o.since) > 2*o.patience && time.Since(o.applied) > 2*o.patience {
		return o.patience
	}
	return min(max(3*o.took, shortestLockWait).Truncate(time.Second), o.patience)
}

// known reports whether there are any. The caller holds mu.
func (o *contention) known() bool { return time.Since(o.met) < o.memory }

// others reports whether there are any and others are applied beside them. The caller holds mu.
func (o *contention) others() bool {
	return o.known() && o.applied.After(o.since) && time.Since(o.applied) < 2*o.patience
}

// ask is what a question says that needs mu.
func (o *contention) ask(question func() bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return question()
}

// flow reports whether others are applied beside such locks, for whom whoever meets it makes room at once.
func (o *contention) flow() bool { return o.ask(o.others) }

// unclear reports whether it may soon be known whose way a lock is in. Until then the workers try one after the
// other: who waits for it holds rows for which others would wait in vain, and be taken for those who met it.
func (o *contention) unclear() bool { return o.ask(o.searched) }

// searched is unclear. The caller holds mu.
func (o *contention) searched() bool {
	return o.known() && !o.common && time.Since(o.since) < searchedFor*o.patience
}

// stand reports whether messages step aside, or may have to when they come back.
func (o *contention) stand() bool {
	return o.ask(func() bool {
		for _, m := range o.marks {
			if m.met >= metInCommon {
				return o.known()
			}
		}
		return false
	})
}

// meet takes in that items have waited in vain.
func (o *contention) meet(items []*item, took time.Duration) {
	if len(items) == 1 {
		items[0].read()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !o.known() {
		o.since, o.room, o.took, o.common = now, o.size, 0, false
		o.marks, o.passed = map[uint64]mark{}, map[uint64]time.Time{}
	}
	o.met = now
	if len(items) > 1 {
		o.room = fewAtOnce
		return
	}
	o.trial = now.Add(min(trialRests*took, 4*o.patience))
	if len(o.marks)+len(items[0].named) > maxMarks {
		clear(o.marks)
	}
	for _, v := range items[0].named {
		if m, marked := o.marks[v]; marked {
			o.common = o.common || m.by != items[0].id.Identity
			o.marks[v] = mark{m.since, m.met + 1, items[0].id.Identity}
		} else if now.Sub(o.passed[v]) > passedFor {
			o.marks[v] = mark{now, 1, items[0].id.Identity}
		}
	}
}

// pass takes in that items are applied, but for the blamed.
func (o *contention) pass(items []*item, blamed map[int]error, took time.Duration) {
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
	for i, it := range items {
		if blamed[i] != nil {
			continue
		}
		for _, v := range it.named {
			if len(o.passed) >= maxPassed {
				clear(o.passed)
			}
			o.passed[v] = o.applied
			if o.marks[v].met >= metInCommon {
				o.trial = time.Time{} // the lock is gone: the next may be as lucky
			}
			delete(o.marks, v)
		}
		it.named = nil // it has a new life only as another item
	}
}

// most is how many of n messages may share a transaction.
func (o *contention) most(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known() {
		return min(n, o.room)
	}
	return n
}

// part tells those of items that should step aside from the rest; at most one of them is the trial.
func (o *contention) part(items []*item) (rest, aside, trial []*item) {
	o.read(items...)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.others() || len(o.marks) == 0 {
		return items, nil, nil
	}
	for _, it := range items {
		switch now := time.Now(); {
		case !o.marked(it):
			rest = append(rest, it)
		case trial == nil && now.After(o.trial):
			trial, o.trial = []*item{it}, now.Add(4*o.patience)
		default:
			aside = append(aside, it)
		}
	}
	return rest, aside, trial
}

// marked reports whether a message names what several have in common that waited in vain. The caller holds mu.
func (o *contention) marked(it *item) bool {
	for _, v := range it.named {
		if o.marks[v].met >= metInCommon {
			return true
		}
	}
	return false
}

// age is how long ago the first of those waited in vain who named what this message does.
func (o *contention) age(it *item) (age time.Duration) {
	o.read(it)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known() {
		return 0
	}
	for _, v := range it.named {
		if m, marked := o.marks[v]; marked {
			age = max(age, time.Since(m.since))
		}
	}
	return age
}

// read reads what items name, if there are any. The caller does not hold mu: nobody waits for that.
func (o *contention) read(items ...*item) {
	if !o.ask(o.known) {
		return
	}
	for _, it := range items {
		it.read()
	}
}

// read notes what the message names: itself, and numbers and texts in its body with the field where each stands.
func (it *item) read() {
	if it.named != nil {
		return
	}
	it.named = append(it.named, maphash.Comparable(nameSeed, it.id.Identity))
	d := json.NewDecoder(bytes.NewReader(it.msg.Body[:min(len(it.msg.Body), maxRead)]))
	d.UseNumber()
	it.name(d, "")
}

// name notes what the next value names, as far as it can be read, and reports whether there may be more.
func (it *item) name(d *json.Decoder, field string) bool {
	t, err := d.Token()
	if err != nil || len(it.named) >= maxNamed {
		return false
	}
	switch t := t.(type) {
	case json.Delim:
		for d.More() {
			if t == '{' {
				if key, err := d.Token(); err == nil {
					field, _ = key.(string)
				}
			}
			if !it.name(d, field) {
				return false
			}
		}
		_, err = d.Token() // its end
	case string, json.Number:
		it.named = append(it.named, maphash.Comparable(nameSeed, [2]string{field, fmt.Sprint(t)}))
	}
	return err == nil
}

var nameSeed = maphash.MakeSeed()

// holders finds out whose the locks are that are waited for, once that has lasted for a lease. It asks only beside a
// statement that has no answer yet, so nobody asks while nobody waits.
type holders struct {
	health *health
	pool   *sql.DB
	lease  time.Duration
	every  time.Duration // how long a statement is without an answer, and between two questions

	mu     sync.Mutex     // held while it is asked
	asked  time.Time      // guarded by mu
	since  time.Time      // when the contention of told began; guarded by mu
	told   map[int64]bool // the connections that the log has named; guarded by mu
	hidden bool           // the log has said that they cannot be seen; guarded by mu
}

func newHolders(cfg Config, h *health, pool *sql.DB) *holders {
	return &holders{health: h, pool: pool, lease: cfg.Lease, every: cfg.lockWait() / 2}
}

// beside looks from time to time until stop is called. Where others flow a wait may be of the shortest.
func (h *holders) beside(ctx context.Context) (stop func()) {
	if time.Since(h.health.contendedSince()) < h.lease {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait.For(ctx, min(h.every, shortestLockWait/2)) == nil {
			h.look(ctx)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// look asks who it is, unless another worker does or just did. Whom it finds is told, and logged once.
func (h *holders) look(ctx context.Context) {
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	if time.Since(h.asked) < h.every {
		return
	}
	h.asked = time.Now()
	found, err := mysqldb.Holders(ctx, h.pool, h.lease)
	switch {
	case mysqldb.Answered(err):
		h.health.heldBy("who cannot be seen: " + err.Error())
		if !h.hidden {
			h.hidden = true
			h.health.log.WarnContext(ctx, "who holds the locks cannot be seen", "err", err)
		}
		return
	case err != nil || ctx.Err() != nil:
		return // the statement has its answer, or MySQL is away, which others tell of
	}
	if since := h.health.contendedSince(); !since.Equal(h.since) {
		h.since, h.told = since, map[int64]bool{}
	}
	var who []string
	for _, one := range found {
		who = append(who, one.String())
		if h.told[one.Connection] {
			continue
		}
		h.told[one.Connection] = true
		h.health.log.WarnContext(ctx, "somebody holds rows that messages wait for", "connection", one.Connection,
			"user", one.User, "host", one.Host, "table", one.Table, "open", one.Open, "statement", one.Statement,
			"ends_it", one.End())
	}
	h.health.heldBy(strings.Join(who, "; "))
}

// setback is why something is tried again. Where there is none the dependency has answered, whatever the error says.
type setback struct {
	is        bool
	contended bool // others have locks, or met a transaction of ours: the dependency is there
	counted   bool // whoever repeats knows how often
}

// setbackOf is what the error of a dependency says: it is away, unless it has told of one row. A COMMIT that had no
// answer is made again, because the log recognises its own. A cluster finds out at COMMIT alone that two transactions
// met (Galera, group replication): no count of meetings bounds that, but the worker's patience.
func setbackOf(err error) setback {
	told := errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrExists)
	return setback{is: err != nil && !told, contended: mysqldb.Classify(err) == mysqldb.FaultContention}
}
