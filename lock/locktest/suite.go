// Package locktest is what every [lock.Locker] must do, as tests: a backend over another server passes [Run] and
// nothing else needs to be known of it.
//
// What may live here: the suite, and what it asks of a backend ([Backend]). What must not: anything of one server,
// which is for the backend's own tests.
package locktest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/lock"
)

// Backend is a lock's server, for one test alone, and what the suite does to it.
type Backend interface {
	// Open makes a Locker there, as one process of many has it.
	Open(t *testing.T, o lock.Options) lock.Locker
	// OpenLossy makes one over a connection that loses a reply when told: lose has the next reply to it lost, after the
	// server did what it was asked for, and lost says how many were.
	OpenLossy(t *testing.T, o lock.Options) (l lock.Locker, lose func(), lost func() int)
	// Marks reports whether Done leaves done markers. A lock to which they are not cheap gives the names back instead.
	Marks() bool
	// Spoil writes under the name what no rollbackd writes, and what does not go away by itself.
	Spoil(t *testing.T, name lock.Name)
	// Forget writes under the name the lock of a holder who will neither renew nor release it, without an end. A server
	// on which there is no such thing writes what Spoil does.
	Forget(t *testing.T, name lock.Name)
	// Die ends the process that has the Locker, without a word to the server. Where a lock that nobody renews expires, it
	// has nothing to do.
	Die(t *testing.T, l lock.Locker)
	// Stop ends the server without a warning. Start brings it back, with or without what it held.
	Stop(t *testing.T)
	Start(t *testing.T)
	// Freeze has the server stand still until it is thawed.
	Freeze(t *testing.T)
	Thaw(t *testing.T)
}

// Run tries everything that a Locker promises. It calls open for each test.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	for name, test := range map[string]func(*testing.T, *World){
		"a name has one holder":                       oneHolder,
		"the same token again is no other worker":     sameToken,
		"only its holder releases a lock":             release,
		"a dead worker's lock expires":                expiry,
		"a lock in hand is renewed":                   renewal,
		"a forgotten lock is not renewed for ever":    forgotten,
		"what is done is nobody's any more":           doneFrees,
		"a done marker is a hint":                     doneMarker,
		"a foreign value is nobody's lock":            foreign,
		"many names have an outcome each, in order":   manyNames,
		"a lock whose reply was lost is its holder's": lostReply,
		"proceed goes on without a server":            proceed,
		"pause says that nothing is known":            pause,
		"a server that stands still bounds each call": frozen,
		"a call that its caller ended is no failure":  ended,
		"a name that nobody made is refused":          zeroName,
		"no names are no work":                        noNames,
		"it runs once":                                runsOnce,
		"what it found is counted":                    counted,
		"two schemas on one server never meet":        schemas,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, NewWorld(t, open(t)))
		})
	}
}

// World is a backend with the names of a schema of its own.
type World struct {
	*testing.T
	Backend
	Schema string
}

// NewWorld is a backend of one test.
func NewWorld(t *testing.T, b Backend) *World {
	return &World{T: t, Backend: b, Schema: uuid.NewString()}
}

// Names are the names of keys.
func (w *World) Names(keys ...string) []lock.Name {
	names := make([]lock.Name, len(keys))
	for i, k := range keys {
		names[i] = lock.NameOf(w.Schema, "group", "tag", k)
	}
	return names
}

// Keys are so many.
func Keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	return keys
}

// Must ends the test on an error.
func (w *World) Must(err error) {
	w.Helper()
	require.OK(w, err)
}

// afterDone is what is found under a name that was done.
func (w *World) afterDone() lock.Hold {
	if w.Marks() {
		return lock.DoneMarker
	}
	return lock.Mine
}

// Worker is one process.
type Worker struct {
	lock.Locker
	w     *World
	token string
}

// Worker opens the lock of a process.
func (w *World) Worker(token string, o lock.Options) Worker {
	w.Helper()
	return w.Of(w.Open(w.T, o), token)
}

// Of is the process that has a lock.
func (w *World) Of(l lock.Locker, token string) Worker { return Worker{l, w, token} }

// As is the same process with another token.
func (p Worker) As(token string) Worker { return Worker{p.Locker, p.w, token} }

// Find returns what it finds under each key.
func (p Worker) Find(keys ...string) []lock.Held {
	p.w.Helper()
	held := require.Get(p.Lock(p.w.Context(), p.token, p.w.Names(keys...)))(p.w)
	require.Is(p.w, len(held), len(keys), "%s locks %v: outcomes", p.token, keys)
	return held
}

// Finds locks the keys and says what is not as expected. A holder is known by its token.
func (p Worker) Finds(want lock.Hold, holder string, keys ...string) {
	p.w.Helper()
	for i, got := range p.Find(keys...) {
		if got.Hold != want || holder != "" && got.Holder != holder {
			p.w.Errorf("%s finds %q %v, held by %q, want %v %s", p.token, keys[i], got.Hold, got.Holder, want, holder)
		}
	}
}

// Mine is how many of the keys are its own by now.
func (p Worker) Mine(keys ...string) (n int) {
	p.w.Helper()
	for _, h := range p.Find(keys...) {
		if h.Hold == lock.Mine {
			n++
		}
	}
	return n
}

// GiveBack releases the keys.
func (p Worker) GiveBack(keys ...string) {
	p.w.Helper()
	require.OK(p.w, p.Release(p.w.Context(), p.token, p.w.Names(keys...)))
}

// Ends says that the keys are done, by messages with this body.
func (p Worker) Ends(body byte, keys ...string) {
	p.w.Helper()
	var marks []lock.Mark
	for _, name := range p.w.Names(keys...) {
		marks = append(marks, lock.Mark{Name: name, BodyHash: hash(body)})
	}
	require.OK(p.w, p.Done(p.w.Context(), marks))
}

// Look shows a key.
func (p Worker) Look(key string) lock.State {
	p.w.Helper()
	return require.Get(p.Show(p.w.Context(), p.w.Names(key)[0]))(p.w)
}

// Runs runs the locker until the test ends or the returned function is called.
func (p Worker) Runs() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		err := p.Run(ctx)
		assert.That(p.w, err == nil, "%s runs: %v, want nil", p.token, err)
	})
	stop = func() { cancel(); wg.Wait() }
	p.w.Cleanup(stop)
	return stop
}

// IsAsked waits until the server is asked again.
func (p Worker) IsAsked() {
	p.w.Helper()
	p.w.Await("the server is asked again", func() bool { up, _, _ := p.Up(); return up })
}

// GoesOnWithout locks keys again and again while the servers are in trouble: all are its own, and nobody waits.
func (p Worker) GoesOnWithout(keys ...string) {
	p.w.Helper()
	start := time.Now()
	for range 100 {
		p.Finds(lock.Mine, "", keys...)
	}
	assert.AtMost(p.w, time.Since(start), 5*time.Second, "100 calls took")
}

func hash(body byte) (h [32]byte) {
	for i := range h {
		h[i] = body
	}
	return h
}

// Await waits for a condition of the server.
func (w *World) Await(what string, ok func() bool) {
	w.Helper()
	require.That(w, poll.During(w.Context(), time.Minute, 5*time.Millisecond, ok), "waited in vain: %s", what)
}

// patient is the timeout of those who shall not go on without an answer, however much else the machine has to do, and
// awake has nothing else.
const patient = 8 * time.Second

var awake = lock.Options{Timeout: patient}

func oneHolder(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Finds(lock.Mine, "", "one")
	b.Finds(lock.HeldByOther, "a", "one")
	if s := b.Look("one"); s.Hold != lock.HeldByOther || s.Token != "a" || s.TTL <= 0 || s.TTL > 10*time.Second {
		t.Errorf("Show = %+v, want it held by a for at most 10s", s)
	}
	assert.Is(t, b.Look("nobody's").Hold, 0, "Show")

	const workers, count = 8, 200
	keys := Keys(count)
	won := make([][]lock.Held, workers)
	var wg sync.WaitGroup
	for i := range workers {
		p := w.Worker(fmt.Sprint("worker", i), awake)
		wg.Go(func() { won[i], _ = p.Lock(t.Context(), p.token, w.Names(keys...)) })
	}
	wg.Wait()
	for k := range count {
		winners := 0
		for i := range workers {
			if won[i] != nil && won[i][k].Hold == lock.Mine {
				winners++
			}
		}
		assert.Is(t, winners, 1, "%s was locked by workers at once", keys[k])
	}
}

func sameToken(_ *testing.T, w *World) {
	a := w.Worker("a", awake)
	a.Finds(lock.Mine, "", "one")
	a.Finds(lock.Mine, "", "one")
	w.Worker("a", awake).Finds(lock.Mine, "", "one") // whichever connection it came over
}

func release(_ *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
	a.Find("one", "two")
	b.Find("three")
	a.GiveBack("one", "three", "nobody's")
	c.Finds(lock.Mine, "", "one")
	c.Finds(lock.HeldByOther, "a", "two")
	c.Finds(lock.HeldByOther, "b", "three")
	c.Finds(lock.Mine, "", "nobody's")
}

func expiry(_ *testing.T, w *World) {
	short := lock.Options{LockTTL: 150 * time.Millisecond} // not running: nobody renews
	dead, b := w.Worker("dead", short), w.Worker("b", awake)
	dead.Finds(lock.Mine, "", "one")
	w.Die(w.T, dead.Locker)
	w.Await("the lock expires", func() bool { return b.Find("one")[0].Hold == lock.Mine })
	dead.GiveBack("one")
	w.Worker("c", awake).Finds(lock.HeldByOther, "b", "one") // the late release was of a lock that is another's
}

func renewal(_ *testing.T, w *World) {
	// a busy machine may be late for a renewal, and for an answer, by more than a second
	short := lock.Options{LockTTL: 2 * time.Second, Timeout: patient}
	a, b := w.Worker("a", short), w.Worker("b", short)
	stop := a.Runs()
	a.Find("one", "two")
	a.GiveBack("two")
	since := time.Now()
	w.Await("three lifetimes of the lock", func() bool {
		b.Finds(lock.HeldByOther, "a", "one")
		return time.Since(since) > 6*time.Second
	})
	stop()
	w.Die(w.T, a.Locker)
	w.Await("a stopped worker's lock expires", func() bool { return b.Find("one")[0].Hold == lock.Mine })
}

func forgotten(_ *testing.T, w *World) {
	short := lock.Options{LockTTL: 300 * time.Millisecond, MaxHold: 600 * time.Millisecond}
	a, b := w.Worker("a", short), w.Worker("b", short)
	a.Runs()
	a.Finds(lock.Mine, "", "one")
	w.Await("it expires although its worker runs", func() bool { return b.Find("one")[0].Hold == lock.Mine })
}

func doneFrees(_ *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
	a.Find("one", "free")
	b.Find("two") // the success is committed, whoever works on it still
	a.Ends(1, "one", "two")
	a.GiveBack("one", "two", "free")
	c.Finds(w.afterDone(), "", "one")
	c.Finds(w.afterDone(), "", "two")
	c.Finds(lock.Mine, "", "free")
}

func doneMarker(t *testing.T, w *World) {
	if !w.Marks() {
		t.Skip("this lock leaves no done markers")
	}
	o := lock.Options{DoneTTL: time.Minute, Timeout: patient}
	a, b, c := w.Worker("a", o), w.Worker("b", o), w.Worker("c", o)
	a.Find("one", "free")
	b.Find("two") // written over as well: the success is committed, whoever works on it still
	a.Ends(1, "one")
	a.Ends(2, "two")
	a.GiveBack("one", "two", "free") // leaves markers alone
	for key, body := range map[string]byte{"one": 1, "two": 2} {
		if got := c.Find(key)[0]; got.Hold != lock.DoneMarker || got.BodyHash != hash(body) || got.Holder != "" {
			t.Errorf("%s: %+v, want the done marker of body %d", key, got, body)
		}
	}
	c.Finds(lock.Mine, "", "free")
	want := hash(1)
	s := c.Look("one")
	assert.That(t, s.Hold == lock.DoneMarker && string(s.Hash) == string(want[:]) && s.TTL > 50*time.Second &&
		s.TTL <= time.Minute, "Show = %+v, want the done marker for about a minute", s)
	a.Ends(3, "one") // the last word is the right one: a marker may have lied
	assert.Is(t, c.Find("one")[0].BodyHash, hash(3), "after another mark")
	w.Worker("d", lock.Options{DoneTTL: 50 * time.Millisecond}).Ends(4, "short")
	w.Await("a marker goes away", func() bool { return c.Find("short")[0].Hold == lock.Mine })
}

// A value that rollbackd did not write is no lock to wait for, because nobody ends it, and tells of no success.
func foreign(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	w.Spoil(t, w.Names("spoilt")[0])
	w.Forget(t, w.Names("endless")[0])
	for _, key := range []string{"spoilt", "endless"} {
		a.Finds(lock.Foreign, "", key)
	}
	s := a.Look("spoilt")
	assert.That(t, s.Hold == lock.Foreign && s.Token == "" && s.Hash == nil, "Show = %+v, want it foreign", s)
	a.GiveBack("spoilt") // is not ours
	b.Finds(lock.Foreign, "", "spoilt")
	a.Ends(1, "spoilt") // a success is told over whatever stands there
	b.Finds(w.afterDone(), "", "spoilt")
	_, _, cause := a.Up()
	assert.That(t, cause == nil, "a foreign value was taken for a failure of the server: %v", cause)
}

func manyNames(t *testing.T, w *World) {
	a, b, c := w.Worker("a", awake), w.Worker("b", awake), w.Worker("c", awake)
	const count = 1000
	keys := Keys(count)
	var held, done, own []string
	want := make([]lock.Hold, count)
	for i := range keys {
		switch i % 4 {
		case 0:
			want[i] = lock.Mine
		case 1:
			want[i], held = lock.HeldByOther, append(held, keys[i])
		case 2:
			want[i], done = w.afterDone(), append(done, keys[i])
		case 3:
			want[i], own = lock.Mine, append(own, keys[i])
		}
	}
	a.Find(held...)
	b.Ends(1, done...)
	c.Find(own...)
	w.Spoil(t, w.Names(keys[8])[0])
	want[8] = lock.Foreign
	for i, got := range c.Find(keys...) {
		require.Is(t, got.Hold, want[i], "name %d of %d", i, count)
	}
}

func lostReply(t *testing.T, w *World) {
	l, lose, lost := w.OpenLossy(t, awake)
	a := w.Of(l, "a")
	a.Finds(lock.Mine, "", "warm up")
	lose()
	a.Finds(lock.Mine, "", "one")
	require.Is(t, lost(), 1, "replies were lost")
	w.Worker("b", awake).Finds(lock.HeldByOther, "a", "one")
	_, _, cause := a.Up()
	assert.That(t, cause == nil, "one lost reply was taken for a failure: %v", cause)
}

func proceed(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Proceed, Timeout: patient / 2})
	a.Runs()
	a.Find("one")
	w.Stop(t)
	const calls = 1000
	start := time.Now()
	for range calls { // as many timeouts would take minutes
		a.Finds(lock.Mine, "", "one") // nobody can be asked
		a.Ends(1, "one")
		a.GiveBack("one")
	}
	assert.AtMost(t, time.Since(start), 20*time.Second, "%d calls without a server took", calls)
	if up, since, cause := a.Up(); up || cause == nil || time.Since(since) > time.Minute {
		t.Errorf("Up = %v, %v, %v, want down since now, and why", up, since, cause)
	}
	assert.Is(t, a.Attempts(lock.ResultFailed)+a.Attempts(lock.ResultBypassed), calls,
		"names are counted as failed or bypassed")
	w.Start(t)
	w.Await("the server is asked again", func() bool { up, _, _ := a.Up(); return up })
	a.Finds(lock.Mine, "", "two")
	w.Worker("b", awake).Finds(lock.HeldByOther, "a", "two")
}

func pause(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Pause, Timeout: patient / 2})
	a.Runs()
	a.Find("one")
	w.Stop(t)
	start := time.Now()
	for range 1000 {
		held, err := a.Lock(t.Context(), "a", w.Names("one", "two"))
		require.That(t, errors.Is(err, lock.ErrUnavailable) && held == nil, "Lock = %v, %v, want ErrUnavailable", held, err)
	}
	assert.AtMost(t, time.Since(start), 10*time.Second, "1000 calls, with one timeout, took")
	_, err := a.Show(t.Context(), w.Names("one")[0])
	assert.That(t, err != nil, "Show without a server succeeded")
	w.Start(t)
	w.Await("the server is asked again", func() bool {
		_, err := a.Lock(t.Context(), "a", w.Names("two"))
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// What a server that stands still is asked for ends in time; when it goes on, nothing of before is in anybody's way.
func frozen(t *testing.T, w *World) {
	o := lock.Options{Timeout: 300 * time.Millisecond, LockTTL: 2 * time.Second}
	a, other := w.Worker("a", o), w.Worker("b", o)
	o.OnError = lock.Pause
	pausing := w.Worker("c", o)
	a.Runs()
	other.Runs()
	keys := Keys(10)
	a.Find(keys...)
	a.GiveBack(keys...) // a thread of a server may answer for a moment
	a.As("in hand").Find(keys[:5]...)
	w.Freeze(t)
	a.GoesOnWithout(keys[5:]...)
	_, err := pausing.Lock(t.Context(), "c", w.Names("one"))
	assert.That(t, errors.Is(err, lock.ErrUnavailable) && strings.Contains(err.Error(), "took over 300ms"),
		"Lock = %v, want ErrUnavailable and why", err)
	_, err = pausing.Show(t.Context(), w.Names("one")[0])
	assert.That(t, err != nil, "Show without an answer succeeded")
	w.Thaw(t)
	a.IsAsked()
	other.IsAsked()
	a.As("in hand").GiveBack(keys[:5]...)
	w.Await("nothing is in the way", func() bool { return other.Mine(keys...) == len(keys) })
}

func ended(t *testing.T, w *World) {
	for _, policy := range []lock.Policy{lock.Proceed, lock.Pause} {
		a := w.Worker("a", lock.Options{OnError: policy})
		why := errors.New("the lane stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		names := w.Names("one")
		_, err := a.Lock(ctx, "a", names)
		for what, err := range map[string]error{
			"Lock": err, "Release": a.Release(ctx, "a", names), "Done": a.Done(ctx, []lock.Mark{{Name: names[0]}}),
		} {
			assert.That(t, errors.Is(err, why) && !errors.Is(err, lock.ErrUnavailable),
				"%s: %s = %v, want the caller's own cause", policy, what, err)
		}
		_, _, cause := a.Up()
		assert.That(t, cause == nil, "%s: the server was given up: %v", policy, cause)
	}
}

func zeroName(t *testing.T, w *World) {
	a := w.Worker("a", awake)
	bad := append(w.Names("one"), lock.Name{})
	_, locked := a.Lock(t.Context(), "a", bad) // all of them would share one lock
	_, shown := a.Show(t.Context(), bad[1])
	for what, err := range map[string]error{
		"Lock": locked, "Release": a.Release(t.Context(), "a", bad), "Show": shown,
		"Done": a.Done(t.Context(), []lock.Mark{{Name: bad[1]}}), // one marker would end all of them
	} {
		assert.That(t, err != nil, "%s of the zero name succeeded", what)
	}
	assert.Is(t, a.Look("one").Hold, 0, "the good name beside the refused one")
}

func noNames(t *testing.T, w *World) {
	a := w.Worker("a", lock.Options{OnError: lock.Pause})
	w.Stop(t)
	held, err := a.Lock(t.Context(), "a", nil)
	err = errors.Join(err, a.Release(t.Context(), "a", nil), a.Done(t.Context(), nil))
	assert.That(t, err == nil && len(held) == 0, "empty calls = %v, %v, want nothing", held, err)
}

func runsOnce(t *testing.T, w *World) {
	a := w.Worker("a", awake)
	a.Runs()()
	err := a.Run(t.Context())
	assert.That(t, err != nil, "the second Run succeeded")
}

func counted(t *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Find("one", "two")
	a.Ends(1, "three")
	w.Spoil(t, w.Names("four")[0])
	b.Find("one", "two", "three", "four", "five")
	counts := map[lock.Result]uint64{
		lock.ResultMine: 1, lock.ResultHeld: 2, lock.ResultForeign: 1, lock.ResultDone: 0, lock.ResultFailed: 0,
		lock.ResultBypassed: 0,
	}
	if w.Marks() {
		counts[lock.ResultDone]++
	} else {
		counts[lock.ResultMine]++
	}
	for r, want := range counts {
		assert.Is(t, b.Attempts(r), want, "Attempts(%v)", r)
	}
}

func schemas(_ *testing.T, w *World) {
	a, b := w.Worker("a", awake), w.Worker("b", awake)
	a.Find("locked")
	a.Ends(1, "done")
	w.Schema += " made anew"
	b.Finds(lock.Mine, "", "locked")
	b.Finds(lock.Mine, "", "done")
}
