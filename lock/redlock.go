package lock

import (
	"context"
	"errors"
	"fmt"
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
	b, err := overRedis("redlock", o, clients...)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// takeOnce asks all nodes, in one round. Names that nobody has on more than half of them, because several workers came
// at once, are given back and left open. What a single node says is the answer, also beside an error.
func (b *base) takeOnce(ctx context.Context, value string, names []Name) (held []Held, _ error) {
	back := func(a reply, of []Held) { // frees there what is not ours on the whole: an error is nothing
		var lost []Name
		for i, h := range a.held {
			if h.Hold == Mine && (of == nil || of[i].Hold != Mine) {
				lost = append(lost, names[i])
			}
		}
		if lost != nil {
			_ = b.within(context.WithoutCancel(ctx), func(ctx context.Context) error {
				return a.from.GiveBack(ctx, value, lost)
			})
		}
	}
	began := time.Now()
	replies, err := b.ask(ctx, true, func(ctx context.Context, a *reply) (err error) {
		a.held, err = a.from.Take(ctx, value, names)
		return err
	}, func(late reply) { back(late, nil) })
	if b.isOne() {
		for _, a := range replies {
			held = a.held
		}
		return held, err
	}
	drift := b.o.LockTTL/100 + 2*time.Millisecond // of clocks, as the algorithm's text has it
	if spent := time.Since(began); err == nil && spent > b.o.LockTTL-drift {
		err = fmt.Errorf("%v went by until the masters had answered, nearly the lock's %v", spent, b.o.LockTTL)
	}
	if err == nil {
		for i := range names {
			held = append(held, b.verdict(replies, i))
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
func (b *base) verdict(replies []reply, i int) Held {
	votes := map[Held]int{}
	var marker, most Held
	worked := false
	for _, a := range replies {
		h := a.held[i]
		if votes[h]++; votes[h] > len(b.nodes)/2 {
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

// look asks no server: it notes whether more than half of the masters are asked, and tells the log when some begin or
// cease to be away, and once a minute that they still are.
func (b *base) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	was, count := b.away, len(b.nodes)
	var causes []error
	for i, n := range b.nodes {
		if cause := n.down(); cause != nil {
			causes = append(causes, b.of(i, cause))
		}
	}
	b.away = len(causes)
	if b.away > (count-1)/2 {
		b.health.fail(errors.Join(causes...))
		return
	}
	b.health.recover()
	switch {
	case b.away == was && (was == 0 || time.Since(b.told) < stillEvery):
	case b.away == 0:
		b.o.Log.Info("redlock: all masters answer again")
	default:
		b.told = time.Now()
		b.o.Log.Warn("redlock: masters are away; the others are enough", "away", b.away, "of", count,
			"err", errors.Join(causes...), "do", seeThatItRuns)
	}
}
