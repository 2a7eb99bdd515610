package locking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/redisdb"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
)

// Redlock is the lock over several masters of Redis that know nothing of each other: a name is held by who has it on
// more than half of them, within the time that it lasts (redis.io, "Distributed Locks with Redis"). Each master is a
// [lock.Redis] of its own, with its own health: one that is away is asked again when its own probe succeeds, and costs
// nobody anything meanwhile. What Redlock does not give, docs/guarantees.md says.
type Redlock struct {
	masters []*master
	quorum  int
	o       lock.Options
	log     *slog.Logger
	counts  []atomic.Uint64
	running atomic.Bool
	late    sync.WaitGroup // answers that nobody waits for any more

	mu    sync.Mutex
	up    bool      // more than half of the masters are asked; guarded by mu
	since time.Time // guarded by mu
	cause error     // why not; guarded by mu
	down  int       // masters that are not asked; guarded by mu
	told  time.Time // when the log last said that masters are away; guarded by mu
}

var _ lock.Locker = (*Redlock)(nil)

type master struct {
	*lock.Redis
	client io.Closer
	number int // as the setting has them, from 1
}

// OpenRedlock makes a lock over the masters that the URL lists. It asks them nothing. Close ends its connections, after
// Run has returned.
func OpenRedlock(s Servers, o lock.Options) (*Redlock, error) {
	o = o.WithDefaults()
	urls := redisdb.SplitURLs(s.RedisURL)
	l := &Redlock{quorum: len(urls)/2 + 1, o: o, log: o.Log, counts: make([]atomic.Uint64, len(lock.Results()))}
	l.up, l.since = true, time.Now()
	each := o
	each.OnError, each.Log = lock.Pause, slog.New(slog.DiscardHandler) // what a master is for the whole is told here
	for i, url := range urls {
		client, err := lock.OpenRedis(url, lock.RedisOptions{
			Name: s.Name, Connections: s.Connections, CurrentURL: currentOf(s.CurrentRedisURL, i), Opened: s.Opened,
			TLS: s.RedisTLS, Warn: s.Warn,
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("master %d of %d: %w", i+1, len(urls), err), l.Close())
		}
		one, err := lock.NewRedis(client, each)
		if err != nil {
			return nil, errors.Join(err, client.Close(), l.Close())
		}
		l.masters = append(l.masters, &master{one, client, i + 1})
	}
	return l, nil
}

// currentOf is one URL of a list as it is now; what has no such place any more changes nothing.
func currentOf(list func() string, i int) func() string {
	if list == nil {
		return nil
	}
	return func() string {
		if urls := redisdb.SplitURLs(list()); i < len(urls) {
			return urls[i]
		}
		return ""
	}
}

// Close ends the connections.
func (l *Redlock) Close() error {
	l.late.Wait()
	var errs []error
	for _, m := range l.masters {
		errs = append(errs, m.client.Close())
	}
	return errors.Join(errs...)
}

// answer is what one master has found.
type answer struct {
	from *master
	held []lock.Held
	err  error
}

// Lock asks all masters at once, one pipeline each. As soon as more than half have answered, the others have as long
// again: a master that is slow is not waited for by every batch. Names that nobody has on more than half of the
// masters, because several workers came at once, are given back and tried again after a while that chance chooses.
func (l *Redlock) Lock(ctx context.Context, token string, names []lock.Name) ([]lock.Held, error) {
	for _, n := range names {
		if err := n.Check(); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("lock %d keys: %w", len(names), err)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, l.o.Timeout, fmt.Errorf("redlock took over %v", l.o.Timeout))
	defer cancel()
	held := make([]lock.Held, len(names))
	open := make([]int, len(names))
	for i := range open {
		open[i] = i
	}
	for try := 0; len(open) > 0; try++ {
		left, err := l.try(bounded, token, names, open, held)
		if err != nil {
			return l.without(ctx, len(names), err)
		}
		if len(left) > 0 && (try == tries-1 || wait.For(bounded, rand.N(time.Millisecond<<min(try+1, maxShift))) != nil) {
			for _, i := range left {
				held[i].Hold = lock.HeldByOther // somebody will have it, and this batch comes back to it
			}
			break
		}
		open = left
	}
	for _, h := range held {
		l.count(resultOf(h.Hold), 1)
	}
	return held, nil
}

const (
	tries    = 12 // for names of which several workers have a part
	maxShift = 5  // 32 ms between two tries, at most
)

// try asks for the open names once, says what is certain of them, and returns those of which several workers have a
// part.
func (l *Redlock) try(
	ctx context.Context, token string, names []lock.Name, open []int, held []lock.Held,
) (left []int, _ error) {
	some := make([]lock.Name, len(open))
	for n, i := range open {
		some[n] = names[i]
	}
	began := time.Now()
	answers, err := l.ask(ctx, func(ctx context.Context, m *master) answer {
		found, err := m.Lock(ctx, token, some)
		return answer{m, found, err}
	}, func(late answer) { l.giveBack(ctx, token, some, late, nil) })
	if spent := time.Since(began); err == nil && spent > l.o.LockTTL-l.drift() {
		err = fmt.Errorf("%v went by until the masters had answered, nearly the lock's %v", spent, l.o.LockTTL)
	}
	if err != nil {
		for _, a := range answers {
			l.late.Go(func() { l.giveBack(ctx, token, some, a, nil) }) // Lock has used up its time
		}
		return nil, err
	}
	lost := make([]bool, len(some))
	for n, i := range open {
		votes := l.poll(answers, n)
		held[i] = votes.verdict(l.quorum)
		lost[n] = held[i].Hold != lock.Mine
		switch {
		case held[i].Hold != 0:
		case votes.others == 0: // nobody works on it: what stands there is in the way for ever
			held[i].Hold = lock.Foreign
		default:
			left = append(left, i)
			held[i].Hold = lock.HeldByOther
		}
	}
	var wg sync.WaitGroup
	for _, a := range answers {
		wg.Go(func() { l.giveBack(ctx, token, some, a, lost) })
	}
	wg.Wait()
	return left, nil
}

// drift is by how much the clocks of masters may run faster within a lock's time, as the algorithm's text has it.
func (l *Redlock) drift() time.Duration { return l.o.LockTTL/100 + 2*time.Millisecond }

// votes are what the masters say of one name.
type votes struct {
	mine, foreign, others int
	marker                *lock.Held
	best                  lock.Held // of the other holders, who has most
	most                  int
}

func (l *Redlock) poll(answers []answer, n int) (v votes) {
	by := map[string]int{}
	for _, a := range answers {
		switch h := a.held[n]; h.Hold {
		case lock.Mine:
			v.mine++
		case lock.DoneMarker:
			v.marker = &h
		case lock.Foreign:
			v.foreign++
		case lock.HeldByOther:
			v.others++
			by[h.Holder]++
			if by[h.Holder] > v.most {
				v.best, v.most = h, by[h.Holder]
			}
		}
	}
	return v
}

// verdict is what the votes say; the zero Hold when they say nothing. One marker is enough: it only says where to look.
func (v votes) verdict(quorum int) lock.Held {
	switch {
	case v.mine >= quorum:
		return lock.Held{Hold: lock.Mine}
	case v.marker != nil:
		return *v.marker
	case v.most >= quorum:
		return v.best
	case v.foreign >= quorum:
		return lock.Held{Hold: lock.Foreign}
	}
	return lock.Held{}
}

// giveBack frees on one master what it gave us of the lost names; nil: of all. An error is nothing: they expire.
func (l *Redlock) giveBack(ctx context.Context, token string, names []lock.Name, a answer, lost []bool) {
	if a.err != nil {
		return
	}
	var back []lock.Name
	for n, h := range a.held {
		if h.Hold == lock.Mine && (lost == nil || lost[n]) {
			back = append(back, names[n])
		}
	}
	_ = a.from.Release(context.WithoutCancel(ctx), token, back) // bounded by its own timeout
}

// ask calls all masters at once and returns the answers of more than half of them, and those that come in as long
// again. Answers that come later are given to tooLate. An error means that more than half cannot answer.
func (l *Redlock) ask(
	ctx context.Context, call func(context.Context, *master) answer, tooLate func(answer),
) (answers []answer, _ error) {
	began := time.Now()
	all := make(chan answer, len(l.masters))
	own := context.WithoutCancel(ctx) // a call of a master ends by its own timeout
	for _, m := range l.masters {
		l.late.Go(func() { all <- call(own, m) })
	}
	waiting := len(l.masters)
	defer func() {
		if waiting > 0 {
			l.late.Go(func() {
				for range waiting {
					tooLate(<-all)
				}
			})
		}
	}()
	var grace <-chan time.Time
	var errs []error
	for waiting > 0 {
		select {
		case a := <-all:
			waiting--
			if a.err != nil {
				errs = append(errs, fmt.Errorf("master %d of %d: %w", a.from.number, len(l.masters), a.err))
				if len(errs) > len(l.masters)-l.quorum {
					return answers, fmt.Errorf("%d of %d masters do not answer: %w", len(errs), len(l.masters), errors.Join(errs...))
				}
				continue
			}
			if answers = append(answers, a); len(answers) == l.quorum && waiting > 0 {
				timer := time.NewTimer(max(time.Since(began), shortestGrace))
				defer timer.Stop()
				grace = timer.C
			}
		case <-grace:
			return answers, nil
		case <-ctx.Done():
			return answers, context.Cause(ctx)
		}
	}
	return answers, nil
}

// shortestGrace is how long more than half of the masters wait for the others, at least.
const shortestGrace = 2 * time.Millisecond

// without is what a caller is told when more than half of the masters cannot be asked.
func (l *Redlock) without(ctx context.Context, n int, err error) ([]lock.Held, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("lock %d keys: %w", n, context.Cause(ctx))
	}
	result := lock.ResultFailed
	if was, _, _ := l.state(); !was && l.o.OnError == lock.Proceed {
		result = lock.ResultBypassed
	}
	l.count(result, n)
	l.look()
	if l.o.OnError == lock.Pause {
		return nil, fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	held := make([]lock.Held, n)
	for i := range held {
		held[i].Hold = lock.Mine
	}
	return held, nil
}

// Release gives the names back on all masters.
func (l *Redlock) Release(ctx context.Context, token string, names []lock.Name) error {
	for _, n := range names {
		if err := n.Check(); err != nil {
			return fmt.Errorf("release locks: %w", err)
		}
	}
	names = slices.Clone(names) // the last master may answer after this call has ended
	return l.tell(ctx, len(names), func(ctx context.Context, m *master) error { return m.Release(ctx, token, names) })
}

// Done writes done markers on all masters.
func (l *Redlock) Done(ctx context.Context, marks []lock.Mark) error {
	for _, m := range marks {
		if err := m.Name.Check(); err != nil {
			return fmt.Errorf("write done markers: %w", err)
		}
	}
	marks = slices.Clone(marks) // likewise
	return l.tell(ctx, len(marks), func(ctx context.Context, m *master) error { return m.Done(ctx, marks) })
}

// tell tells all masters something of n names.
func (l *Redlock) tell(ctx context.Context, n int, call func(context.Context, *master) error) error {
	if n == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, err := l.ask(ctx, func(ctx context.Context, m *master) answer { return answer{from: m, err: call(ctx, m)} },
		func(answer) {})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case l.o.OnError == lock.Pause:
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
	return nil
}

// Show is what most masters say.
func (l *Redlock) Show(ctx context.Context, name lock.Name) (lock.State, error) {
	if err := name.Check(); err != nil {
		return lock.State{}, fmt.Errorf("show lock: %w", err)
	}
	type seen struct {
		hold        lock.Hold
		token, hash string
	}
	var mu sync.Mutex
	states, count := map[seen]lock.State{}, map[seen]int{}
	_, err := l.ask(ctx, func(ctx context.Context, m *master) answer {
		s, err := m.Show(ctx, name)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			key := seen{s.Hold, s.Token, string(s.Hash)}
			states[key] = s
			count[key]++
		}
		return answer{from: m, err: err}
	}, func(answer) {})
	if err != nil {
		return lock.State{}, fmt.Errorf("show lock %v: %w", name, err)
	}
	mu.Lock()
	defer mu.Unlock()
	var best lock.State
	most := 0
	for key, n := range count {
		if n > most {
			best, most = states[key], n
		}
	}
	return best, nil
}

// Run runs the lock of each master, which renews what we hold there and finds out when it is back.
func (l *Redlock) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return errors.New("the lock was run before")
	}
	var wg sync.WaitGroup
	for _, m := range l.masters {
		wg.Go(func() { _ = m.Run(ctx) }) // it runs once: there is no error
	}
	const every = 100 * time.Millisecond // as soon as a first probe
	for wait.For(ctx, every) == nil {
		l.look()
	}
	wg.Wait()
	return nil
}

// stillEvery is how often the log says that masters are still away, seeThatTheyRun what a person can do.
const (
	stillEvery     = time.Minute
	seeThatTheyRun = "see that they run, are reached from here and let this user in"
)

// look asks no server: it notes which masters are asked, and tells the log when more than half of them begin or cease
// to be, and once a minute that some are away.
func (l *Redlock) look() {
	var causes []error
	for _, m := range l.masters {
		if _, _, cause := m.Up(); cause != nil {
			causes = append(causes, fmt.Errorf("master %d of %d: %w", m.number, len(l.masters), cause))
		}
	}
	up := len(causes) <= len(l.masters)-l.quorum
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.up
	if was != up {
		l.since = time.Now()
	}
	still := time.Since(l.told) >= stillEvery
	switch l.up, l.cause = up, nil; {
	case !up:
		l.cause = errors.Join(causes...)
		if was || still {
			doing := "going on without the lock, on the consumer log alone"
			if l.o.OnError == lock.Pause {
				doing = "nothing is consumed until they answer"
			}
			l.told = time.Now()
			l.log.Warn("redlock: half of the masters or more failed: "+doing, "err", l.cause, "do", seeThatTheyRun,
				"since", time.Since(l.since).Round(time.Second))
		}
	case !was:
		l.log.Info("redlock: more than half of the masters answer again: locking as before")
	}
	switch down := len(causes); {
	case !up || down == l.down && (down == 0 || !still):
	case down == 0:
		l.log.Info("redlock: all masters answer again")
	default:
		l.told = time.Now()
		l.log.Warn("redlock: masters are away; the others are enough", "away", down, "of", len(l.masters),
			"err", errors.Join(causes...), "do", seeThatTheyRun)
	}
	l.down = len(causes)
}

func (l *Redlock) state() (up bool, since time.Time, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.since, l.cause
}

// Up says whether more than half of the masters are asked, since when it is so, and, while they are not, why.
func (l *Redlock) Up() (up bool, since time.Time, cause error) {
	l.look()
	return l.state()
}

// Attempts returns how many names fared so in all calls of Lock.
func (l *Redlock) Attempts(r lock.Result) uint64 { return l.counts[r].Load() }

func (l *Redlock) count(r lock.Result, n int) { l.counts[r].Add(uint64(n)) }

func resultOf(h lock.Hold) lock.Result {
	switch h {
	case lock.Mine:
		return lock.ResultMine
	case lock.HeldByOther:
		return lock.ResultHeld
	case lock.DoneMarker:
		return lock.ResultDone
	}
	return lock.ResultForeign
}
