package lock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// base is the part of a lock that is the same on all servers. After one failure it asks nothing more until a background
// probe succeeds, so that a server that is away costs one timeout and not one per batch.
type base struct {
	store   Store
	o       Options
	health  health
	renewer renewer
	counts  [results]atomic.Uint64
	running atomic.Bool
}

var _ Locker = (*base)(nil)

// newBase checks the options; server is what is said to be away, when it is.
func newBase(server string, s Store, o Options) (*base, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("lock options: %w", err)
	}
	b := &base{store: s, o: o}
	b.health.init(server, o)
	b.renewer.init(o.MaxHold)
	return b, nil
}

// Lock tries all names, see [Locker].
func (b *base) Lock(ctx context.Context, token string, names []Name) ([]Held, error) {
	if err := checkNames(names); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if len(names) == 0 {
		return nil, nil
	}
	if cause := b.health.down(); cause != nil {
		return b.lockWithout(len(names), cause)
	}
	value := lockedPrefix + token
	held, err := b.store.Take(ctx, value, names)
	if err != nil {
		if err = b.failed(ctx, fmt.Sprintf("lock %d keys", len(names)), err); err != nil {
			b.count(ResultFailed, len(names))
			return nil, err
		}
		if len(held) != len(names) { // nothing is known of any
			held = make([]Held, len(names))
		}
	}
	b.keep(value, names, held)
	return held, nil
}

// keep counts what was found, renews from now on what is ours, and proceeds with the keys of which nothing is known.
func (b *base) keep(value string, names []Name, held []Held) {
	b.renewer.add(value, names, held)
	var found [results]int
	for i := range held {
		r := resultOf(held[i].Hold)
		found[r]++
		if r == ResultFailed {
			held[i].Hold = Mine
		}
	}
	for r, n := range found {
		b.count(Result(r), n)
	}
}

func (b *base) lockWithout(n int, cause error) ([]Held, error) {
	if b.o.OnError == Proceed {
		b.count(ResultBypassed, n)
		return allMine(n), nil
	}
	b.count(ResultFailed, n)
	return nil, fmt.Errorf("%w: %w", ErrUnavailable, cause)
}

// failed notes that the server failed and says what the caller is told of it: nothing with Proceed, for the health
// tells the log once. A call that its caller ended is no failure of the server.
func (b *base) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	b.health.fail(err)
	if b.o.OnError == Proceed {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// Release gives names back, see [Locker].
func (b *base) Release(ctx context.Context, token string, names []Name) error {
	if err := checkNames(names); err != nil {
		return fmt.Errorf("release locks: %w", err)
	}
	value := lockedPrefix + token
	if b.health.down() != nil {
		for _, n := range names {
			if b.renewer.holds(value, n) {
				b.renewer.leave(n)
			}
		}
		return nil
	}
	b.renewer.remove(value, names)
	if len(names) == 0 {
		return nil
	}
	if err := b.store.GiveBack(ctx, value, names); err != nil {
		return b.failed(ctx, fmt.Sprintf("release %d locks", len(names)), err)
	}
	return nil
}

// Done says that names are done, see [Locker].
func (b *base) Done(ctx context.Context, marks []Mark) error {
	for _, m := range marks {
		if err := m.Name.Check(); err != nil {
			return fmt.Errorf("write done markers: %w", err)
		}
	}
	if b.health.down() != nil {
		for _, m := range marks {
			b.renewer.leave(m.Name)
		}
		return nil // the consumer log knows
	}
	b.renewer.forget(marks)
	if len(marks) == 0 {
		return nil
	}
	if err := b.store.Mark(ctx, marks); err != nil {
		return b.failed(ctx, fmt.Sprintf("write %d done markers", len(marks)), err)
	}
	return nil
}

// Show looks at one name, whatever the lock's own health. Its error is the server's.
func (b *base) Show(ctx context.Context, name Name) (State, error) {
	if err := name.Check(); err != nil {
		return State{}, fmt.Errorf("show lock: %w", err)
	}
	s, err := b.store.Show(ctx, name)
	if err != nil {
		return State{}, fmt.Errorf("show lock %v: %w", name, err)
	}
	return s, nil
}

// Run renews the locks in hand at a third of their TTL and, while the server is away, probes it with jittered backoff.
// It returns nil when ctx ends, leaving the locks in hand to their TTL. A lock runs once.
func (b *base) Run(ctx context.Context) error {
	if !b.running.CompareAndSwap(false, true) {
		return errors.New("the lock was run before")
	}
	keepLock(ctx, &b.health, b.o.LockTTL/3, b.store.Probe, b.renewAll)
	return nil
}

// renewChunk bounds one renewal, so that it fits into the timeout.
const renewChunk = 1000

func (b *base) renewAll(ctx context.Context) error {
	names, values, over, tooLong := b.renewer.due()
	if tooLong > 0 {
		b.o.Log.WarnContext(ctx, "locks were held too long and are no longer renewed", "locks", tooLong, "over", b.o.MaxHold)
	}
	for value, old := range over {
		if err := b.store.GiveUp(ctx, value, old); err != nil {
			return fmt.Errorf("give up %d locks: %w", len(old), err)
		}
	}
	for len(names) > 0 {
		size := min(renewChunk, len(names))
		stands, err := b.store.Renew(ctx, names[:size], values[:size])
		for i, ours := range stands {
			if !ours { // expired, lost, or another's by now: there is nothing to renew any more
				b.renewer.remove(values[i], names[i:i+1])
			}
		}
		if err != nil {
			return fmt.Errorf("renew %d locks: %w", size, err)
		}
		names, values = names[size:], values[size:]
	}
	return nil
}

func (b *base) count(r Result, n int) { b.counts[r].Add(uint64(n)) }

// Attempts returns how many keys fared so since the lock was made.
func (b *base) Attempts(r Result) uint64 { return b.counts[r].Load() }

// Up says whether the server is being asked, since when it is so, and, while it is not, why.
func (b *base) Up() (up bool, since time.Time, cause error) {
	s := b.health.state.Load()
	return s.cause == nil, s.since, s.cause
}

// probeKey is what a probe asks for.
const probeKey = namePrefix + "probe"
