package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
)

// Store is what a kind of lock does on its servers, and no more. Whether they are asked at all, what an error means,
// and which locks are renewed, is the business of what [Over] makes of it.
//
// All methods may be called by many goroutines and keep none of the slices they are given. The ctx of each ends after
// the [Options.Timeout] that the lock is made with, and the method with it.
type Store interface {
	// Take tries the names in few round trips and says of each what it found. What stands under a name afterwards that
	// is Mine is the value, for a LockTTL; [ReadHeld] judges what stands there already. A name that stands for the
	// value already is Mine again. A name of which nothing is known has the zero Hold; without an error that says why, it
	// is tried again, because somebody else tried it too. With an error it may say nothing of any.
	Take(ctx context.Context, value string, names []Name) ([]Held, error)
	// GiveBack frees the names that stand for the value, and no other: those that are done with, were held too long, or
	// were over while the server was not asked.
	GiveBack(ctx context.Context, value string, names []Name) error
	// Mark ends the locks of the names, whoever holds them, and leaves done markers where that is cheap.
	Mark(ctx context.Context, marks []Mark) error
	// Renew gives each name that stands for its value another LockTTL, and says of each whether it does. With an error it
	// may say so of the first ones only, or of none.
	Renew(ctx context.Context, names []Name, values []string) (stands []bool, err error)
	// Probe asks what Take asks: a server that answers something else may still refuse that.
	Probe(ctx context.Context) error
	// Show looks at one name.
	Show(ctx context.Context, name Name) (State, error)
}

// Over makes a Locker of a store. The server is what the log says to be away, when it is. The options must be the
// store's.
func Over(server string, s Store, o Options) (Locker, error) {
	b, err := newBase(server, o, s)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// base is the part of a lock that is the same on all servers. After one failure it asks nothing more until a background
// probe succeeds, so that a server that is away costs one timeout and not one per batch.
type base struct {
	nodes   []*node // the store, or each master of a redlock
	health  *health // of the one node, or of all together
	o       Options
	tooLong error // why a call was ended
	renewer renewer
	counts  [results]atomic.Uint64
	running atomic.Bool

	mu   sync.Mutex
	away int       // masters that are not asked; guarded by mu
	told time.Time // when the log last said that some are away; guarded by mu
}

// node is one server, or what is one for its clients.
type node struct {
	Store
	health
}

var _ Locker = (*base)(nil)

// newBase checks the options; server is what is said to be away, when it is.
func newBase(server string, o Options, stores ...Store) (*base, error) {
	o = o.WithDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("lock options: %w", err)
	}
	b := &base{o: o, tooLong: fmt.Errorf("%s took over %v", server, o.Timeout), health: &health{}}
	b.health.init(server, o)
	b.renewer.init(o.MaxHold)
	for _, s := range stores {
		n := &node{Store: s}
		n.init(server, o)
		b.nodes = append(b.nodes, n)
	}
	if b.isOne() {
		b.health = &b.nodes[0].health
		return b, nil
	}
	for _, n := range b.nodes {
		n.look = b.look
	}
	return b, nil
}

// isOne is false of a redlock.
func (b *base) isOne() bool { return len(b.nodes) == 1 }

// reply is what one node has said.
type reply struct {
	from  *node
	held  []Held
	state State
	err   error
}

// shortestGrace is how long more than half of the nodes wait for the others, at least.
const shortestGrace = 2 * time.Millisecond

// ask calls all nodes at once and returns the replies of more than half of them, and those that come in as long again:
// one that is slow is not waited for by every batch. Later ones are given to tooLate, if it is set; so what a call uses
// must stay as it is. An error means that more than half cannot reply, the last of whom is among the replies. What is
// for lanes is asked only of those that answered last time, and it is noted who does not; but a call that its caller
// ended is no failure.
func (b *base) ask(
	ctx context.Context, lanes bool, call func(context.Context, *reply) error, tooLate func(reply),
) (replies []reply, _ error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if b.isOne() { // by the caller's own goroutine, whose stack has grown already
		a := b.reply(ctx, 0, lanes, call)
		return []reply{a}, a.err
	}
	began, count := time.Now(), len(b.nodes)
	quorum := count/2 + 1
	all, over := make(chan reply), make(chan struct{})
	defer close(over)
	for i := range b.nodes {
		go func() { // for the timeout at most, whoever waits for it
			a := b.reply(ctx, i, lanes, call)
			select {
			case all <- a:
			case <-over:
				if a.err == nil && tooLate != nil {
					tooLate(a)
				}
			}
		}()
	}
	var grace <-chan time.Time
	var errs []error
	for range count {
		select {
		case a := <-all:
			if a.err != nil {
				if errs = append(errs, a.err); len(errs) > count-quorum {
					return append(replies, a), b.most(errs)
				}
			} else if replies = append(replies, a); len(replies) == quorum {
				grace = time.After(max(time.Since(began), shortestGrace))
			}
		case <-grace:
			return replies, nil
		case <-ctx.Done():
			return replies, context.Cause(ctx)
		}
	}
	return replies, nil
}

// reply calls one node, for the timeout at most, also when ctx ends: what the node did must be known.
func (b *base) reply(ctx context.Context, i int, lanes bool, call func(context.Context, *reply) error) reply {
	a := reply{from: b.nodes[i]}
	if lanes {
		a.err = a.from.down()
	}
	if a.err == nil {
		a.err = b.within(context.WithoutCancel(ctx), func(ctx context.Context) error { return call(ctx, &a) })
		if lanes && a.err != nil && ctx.Err() == nil {
			a.from.fail(a.err)
		}
	}
	a.err = b.of(i, a.err)
	return a
}

// most is the error of a call that more than half did not answer.
func (b *base) most(errs []error) error {
	return fmt.Errorf("%d of %d masters do not answer: %w", len(errs), len(b.nodes), errors.Join(errs...))
}

// of says which node an error is of.
func (b *base) of(i int, err error) error {
	if err == nil || b.isOne() {
		return err
	}
	return fmt.Errorf("master %d of %d: %w", i+1, len(b.nodes), err)
}

// within bounds a call, and says so of one that it ends.
func (b *base) within(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.o.Timeout, b.tooLong)
	defer cancel()
	err := call(ctx)
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Lock tries all names, see [Locker].
func (b *base) Lock(ctx context.Context, token string, names []Name) ([]Held, error) {
	if err := checkNames(names); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if len(names) == 0 {
		return nil, nil
	}
	value := lockedPrefix + token
	var held []Held
	unknown, err := ResultBypassed, b.health.down()
	if err == nil {
		unknown = ResultFailed
		held, err = b.take(ctx, value, slices.Clone(names))
	}
	if err != nil {
		if err = b.failed(ctx, fmt.Sprintf("lock %d keys", len(names)), err); err != nil {
			b.counts[ResultFailed].Add(uint64(len(names)))
			return nil, err
		}
		held = append(held, make([]Held, len(names)-len(held))...) // a store that fails need not say anything
	}
	b.renewer.add(value, names, held)
	var found [results]uint64
	for i := range held {
		if h := &held[i]; h.Hold == 0 {
			found[unknown]++
			h.Hold = Mine
		} else {
			found[h.Hold]++
		}
	}
	for r, n := range found {
		b.counts[r].Add(n)
	}
	return held, nil
}

const (
	tries    = 12 // for names that go from hand to hand while they are looked at
	maxShift = 5  // 32 ms between two tries, at most
)

// take tries names, and again those of which the nodes can only say that somebody else tries them too.
func (b *base) take(ctx context.Context, value string, names []Name) ([]Held, error) {
	held, err := b.takeOnce(ctx, value, names)
	for try := 1; err == nil; try++ {
		var open []int
		var some []Name
		for i, h := range held {
			if h.Hold == 0 {
				open, some = append(open, i), append(some, names[i])
			}
		}
		if open == nil {
			break
		}
		if try == tries || wait.For(ctx, rand.N(time.Millisecond<<min(try, maxShift))) != nil {
			for _, i := range open {
				held[i].Hold = HeldByOther // somebody will have it, and this batch comes back to it
			}
			break
		}
		var again []Held
		if again, err = b.takeOnce(ctx, value, some); err == nil {
			for n, h := range again {
				held[open[n]] = h
			}
		}
	}
	return held, err
}

// failed is what a lane is told of a failure: nothing with Proceed, for the health tells the log once.
func (b *base) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	if b.o.OnError == Proceed {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// Release gives names back, see [Locker].
func (b *base) Release(ctx context.Context, token string, names []Name) error {
	value, names := lockedPrefix+token, slices.Clone(names)
	return b.end(ctx, "release locks", value, names, func(ctx context.Context, a *reply) error {
		return a.from.GiveBack(ctx, value, names)
	})
}

// Done says that names are done, see [Locker].
func (b *base) Done(ctx context.Context, marks []Mark) error {
	marks = slices.Clone(marks)
	return b.end(ctx, "write done markers", "", NamesOf(marks), func(ctx context.Context, a *reply) error {
		return a.from.Mark(ctx, marks)
	})
}

// end ends the renewing of the names that are held with the value, or with any if it is empty, and tells the nodes.
func (b *base) end(
	ctx context.Context, what, value string, names []Name, tell func(context.Context, *reply) error,
) error {
	if err := checkNames(names); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	down := b.health.down() != nil
	b.renewer.drop(value, names, down)
	if down || len(names) == 0 {
		return nil
	}
	if _, err := b.ask(ctx, true, tell, nil); err != nil {
		return b.failed(ctx, fmt.Sprintf("%s of %d names", what, len(names)), err)
	}
	return nil
}

// Show is what most nodes say of one name, whatever their health. Its error is the server's.
func (b *base) Show(ctx context.Context, name Name) (State, error) {
	if err := name.Check(); err != nil {
		return State{}, fmt.Errorf("show lock: %w", err)
	}
	replies, err := b.ask(ctx, false, func(ctx context.Context, a *reply) (err error) {
		a.state, err = a.from.Show(ctx, name)
		return err
	}, nil)
	if err != nil {
		return State{}, fmt.Errorf("show lock %v: %w", name, err)
	}
	key := func(s State) string { return fmt.Sprintf("%d %s %x", s.Hold, s.Token, s.Hash) }
	slices.SortFunc(replies, func(a, b reply) int { return strings.Compare(key(a.state), key(b.state)) })
	return replies[len(replies)/2].state, nil // what more than half say stands in the middle
}

// Run renews the locks in hand at a third of their TTL and, while a server is away, probes it with jittered backoff.
// It returns nil when ctx ends, leaving the locks in hand to their TTL. A lock runs once.
func (b *base) Run(ctx context.Context) error {
	if !b.running.CompareAndSwap(false, true) {
		return errors.New("the lock was run before")
	}
	var wg sync.WaitGroup
	for _, n := range b.nodes {
		wg.Go(func() {
			probe := func(ctx context.Context) error { return b.within(ctx, n.Probe) }
			renew := func(ctx context.Context) error { return b.renewAll(ctx, n) }
			keepLock(ctx, &n.health, b.o.LockTTL/3, probe, renew)
		})
	}
	wg.Wait()
	return nil
}

// renewChunk bounds one renewal, so that it fits into the timeout.
const renewChunk = 1000

func (b *base) renewAll(ctx context.Context, n *node) error {
	names, values, over, tooLong := b.renewer.due()
	if tooLong > 0 {
		b.o.Log.WarnContext(ctx, "locks were held too long and are no longer renewed", "locks", tooLong, "over", b.o.MaxHold)
	}
	for value, old := range over {
		if err := b.within(ctx, func(ctx context.Context) error { return n.GiveBack(ctx, value, old) }); err != nil {
			return fmt.Errorf("give up %d locks: %w", len(old), err)
		}
	}
	for len(names) > 0 {
		size := min(renewChunk, len(names))
		var stands []bool
		err := b.within(ctx, func(ctx context.Context) (err error) {
			stands, err = n.Renew(ctx, names[:size], values[:size])
			return err
		})
		for i, ours := range stands {
			if !ours && b.isOne() { // expired, lost, or another's by now: there is nothing to renew any more
				b.renewer.drop(values[i], names[i:i+1], false)
			}
		}
		if err != nil {
			return fmt.Errorf("renew %d locks: %w", size, err)
		}
		names, values = names[size:], values[size:]
	}
	return nil
}

// Attempts returns how many keys fared so since the lock was made.
func (b *base) Attempts(r Result) uint64 { return b.counts[r].Load() }

// Up says whether the server is being asked, since when it is so, and, while it is not, why.
func (b *base) Up() (up bool, since time.Time, cause error) {
	since, cause = b.health.state()
	return cause == nil, since, cause
}

// probeKey is what a probe asks for.
const probeKey = namePrefix + "probe"

// renewer knows the locks in hand: which key holds which value of ours since when. It asks no server itself.
type renewer struct {
	maxHold time.Duration

	mu   sync.Mutex
	held map[Name]holding  // guarded by mu
	left map[string][]Name // by their value: to be given up when the server is asked again; guarded by mu
}

type holding struct {
	value string // what must stand under the key for it to be ours
	since time.Time
}

func (r *renewer) init(maxHold time.Duration) {
	r.maxHold, r.held, r.left = maxHold, make(map[Name]holding), make(map[string][]Name)
}

// add begins to renew the keys of which held says Mine. A key that was locked again with the same value keeps its age.
func (r *renewer) add(value string, names []Name, held []Held) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range names {
		if held[i].Hold == Mine && r.held[n].value != value {
			r.held[n] = holding{value, now}
		}
	}
}

// drop ends the renewing of the keys that are held with this value, or with any if it is empty. Later is said while the
// server is not asked: their locks are given up then, for not every kind expires while its process lives.
func (r *renewer) drop(value string, names []Name, later bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		h, ok := r.held[n]
		if !ok || value != "" && h.value != value {
			continue
		}
		delete(r.held, n)
		if later {
			r.left[h.value] = append(r.left[h.value], n)
		}
	}
}

// holds reports whether the key is held here with this value.
func (r *renewer) holds(value string, n Name) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[n].value == value
}

// due returns the keys to renew, and by their value those to give up: those that were left, and those that were held
// too long, which it drops and counts.
func (r *renewer) due() (names []Name, values []string, over map[string][]Name, tooLong int) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	over, r.left = r.left, make(map[string][]Name)
	maps.DeleteFunc(r.held, func(n Name, h holding) bool {
		old := now.Sub(h.since) >= r.maxHold
		if old {
			over[h.value] = append(over[h.value], n)
			tooLong++
		}
		return old
	})
	names, values = make([]Name, 0, len(r.held)), make([]string, 0, len(r.held))
	for n, h := range r.held {
		names, values = append(names, n), append(values, h.value)
	}
	return names, values, over, tooLong
}
