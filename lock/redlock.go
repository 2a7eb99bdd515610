package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewRedlock makes the Locker over several masters of Redis that know nothing of each other: a name is held by who has
// it on more than half of them, within the time that it lasts (redis.io, "Distributed Locks with Redis"). Each master
// has a health of its own: one that is away is asked again when its own probe succeeds, and costs nobody anything
// meanwhile. What a redlock does not give, docs/guarantees.md says. The clients stay the caller's, as with [NewRedis].
func NewRedlock(clients []redis.UniversalClient, o Options) (Locker, error) {
	if len(clients) == 0 {
		return nil, errors.New("a redlock of no masters")
	}
	o = o.WithDefaults()
	stores := make([]Store, len(clients))
	for i, client := range clients {
		stores[i] = newRedisStore(client, o)
	}
	b, err := newBase("redlock", o, stores...)
	if err != nil {
		return nil, err
	}
	m := &masters{base: b, quorum: len(clients)/2 + 1}
	m.whole.init("redlock", b.o)
	for i, n := range b.nodes {
		stores[i].(*redisStore).renewer, n.look = &b.renewer, m.look
	}
	b.store, b.health = m, &m.whole
	return b, nil
}

// masters are one store for lanes.
type masters struct {
	Store  // nil: each master is probed and renewed by itself
	base   *base
	quorum int
	whole  health

	mu   sync.Mutex
	away int       // masters that are not asked; guarded by mu
	told time.Time // when the log last said that some are away; guarded by mu
}

// reply is what one master has said.
type reply struct {
	from  *node
	held  []Held
	state State
	err   error
}

// shortestGrace is how long more than half of the masters wait for the others, at least.
const shortestGrace = 2 * time.Millisecond

// ask calls all masters at once and returns the replies of more than half of them, and those that come in as long
// again: one that is slow is not waited for by every batch. Later ones are given to tooLate, if it is set. An error
// means that more than half cannot reply. What is for lanes is asked only of those that answered last time, and it is
// noted who does not.
func (m *masters) ask(
	ctx context.Context, lanes bool, call func(context.Context, *reply) error, tooLate func(reply),
) (replies []reply, _ error) {
	began, count := time.Now(), len(m.base.nodes)
	all, over := make(chan reply), make(chan struct{})
	defer close(over)
	for i, n := range m.base.nodes {
		go func() { // for the timeout at most, whoever waits for it
			a := reply{from: n}
			if lanes {
				a.err = n.down()
			}
			if a.err == nil {
				a.err = m.base.within(context.WithoutCancel(ctx), func(ctx context.Context) error { return call(ctx, &a) })
				if lanes && a.err != nil {
					n.fail(a.err)
				}
			}
			if a.err != nil {
				a.err = m.of(i, a.err)
			}
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
				if errs = append(errs, a.err); len(errs) > count-m.quorum {
					return replies, fmt.Errorf("%d of %d masters do not answer: %w", len(errs), count, errors.Join(errs...))
				}
			} else if replies = append(replies, a); len(replies) == m.quorum {
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

// of says which master an error is of.
func (m *masters) of(i int, err error) error {
	return fmt.Errorf("master %d of %d: %w", i+1, len(m.base.nodes), err)
}

// Take asks all masters, one pipeline each. Names that nobody has on more than half of them, because several workers
// came at once, are given back and left open.
func (m *masters) Take(ctx context.Context, value string, names []Name) (held []Held, _ error) {
	names = slices.Clone(names)        // the last master may answer after this call has ended
	back := func(a reply, of []Held) { // frees there what is not ours on the whole: an error is nothing
		var lost []Name
		for i, h := range a.held {
			if h.Hold == Mine && (of == nil || of[i].Hold != Mine) {
				lost = append(lost, names[i])
			}
		}
		if lost != nil {
			_ = m.base.within(context.WithoutCancel(ctx), func(ctx context.Context) error {
				return a.from.GiveBack(ctx, value, lost)
			})
		}
	}
	began, o := time.Now(), m.base.o
	replies, err := m.ask(ctx, true, func(ctx context.Context, a *reply) (err error) {
		a.held, err = a.from.Take(ctx, value, names)
		return err
	}, func(late reply) { back(late, nil) })
	drift := o.LockTTL/100 + 2*time.Millisecond // of clocks, as the algorithm's text has it
	if spent := time.Since(began); err == nil && spent > o.LockTTL-drift {
		err = fmt.Errorf("%v went by until the masters had answered, nearly the lock's %v", spent, o.LockTTL)
	}
	if err == nil {
		held = make([]Held, len(names))
		for i := range held {
			held[i] = m.verdict(replies, i)
		}
	}
	var wg sync.WaitGroup
	for _, a := range replies {
		wg.Go(func() { back(a, held) })
	}
	if err == nil { // else this call has used up its time
		wg.Wait()
	}
	return held, err
}

// verdict is what the masters say of one name; the zero Hold when they say nothing. One marker is enough: it only says
// where to look.
func (m *masters) verdict(replies []reply, i int) Held {
	votes := map[Held]int{}
	var marker, most Held
	worked := false
	for _, a := range replies {
		h := a.held[i]
		if votes[h]++; votes[h] >= m.quorum {
			most = h
		}
		if h.Hold == DoneMarker {
			marker = h
		}
		worked = worked || h.Hold == HeldByOther
	}
	switch {
	case most.Hold == Mine:
		return most
	case marker.Hold != 0:
		return marker
	case most.Hold != 0 || worked:
		return most
	}
	return Held{Hold: Foreign} // what stands there is in the way for ever
}

// GiveBack gives the names back on all masters.
func (m *masters) GiveBack(ctx context.Context, value string, names []Name) error {
	names = slices.Clone(names) // as in Take
	_, err := m.ask(ctx, true, func(ctx context.Context, a *reply) error {
		return a.from.GiveBack(ctx, value, names)
	}, nil)
	return err
}

// Mark writes done markers on all masters.
func (m *masters) Mark(ctx context.Context, marks []Mark) error {
	marks = slices.Clone(marks) // as in Take
	_, err := m.ask(ctx, true, func(ctx context.Context, a *reply) error { return a.from.Mark(ctx, marks) }, nil)
	return err
}

// Show is what most masters say, whatever their health.
func (m *masters) Show(ctx context.Context, name Name) (State, error) {
	replies, err := m.ask(ctx, false, func(ctx context.Context, a *reply) (err error) {
		a.state, err = a.from.Show(ctx, name)
		return err
	}, nil)
	if err != nil {
		return State{}, err
	}
	key := func(s State) string { return fmt.Sprintf("%d %s %x", s.Hold, s.Token, s.Hash) }
	slices.SortFunc(replies, func(a, b reply) int { return strings.Compare(key(a.state), key(b.state)) })
	return replies[len(replies)/2].state, nil // what more than half say stands in the middle
}

// look asks no server: it notes whether more than half of the masters are asked, and tells the log when some begin or
// cease to be away, and once a minute that they still are.
func (m *masters) look() {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, count := m.away, len(m.base.nodes)
	var causes []error
	for i, n := range m.base.nodes {
		if cause := n.down(); cause != nil {
			causes = append(causes, m.of(i, cause))
		}
	}
	m.away = len(causes)
	if m.away > count-m.quorum {
		m.whole.fail(errors.Join(causes...))
		return
	}
	m.whole.recover()
	switch {
	case m.away == was && (was == 0 || time.Since(m.told) < stillEvery):
	case m.away == 0:
		m.base.o.Log.Info("redlock: all masters answer again")
	default:
		m.told = time.Now()
		m.base.o.Log.Warn("redlock: masters are away; the others are enough", "away", m.away, "of", count,
			"err", errors.Join(causes...), "do", seeThatItRuns)
	}
}
