// Package locktest is what every [lock.Locker] must do, as tests: a backend over another server passes [Run] and
// nothing else needs to be known of it.
//
// What may live here: the suite, and what it asks of a backend ([Backend]). What must not: anything of one server,
// which is for the backend's own tests.
package locktest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

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
}

// Run tries everything that a Locker promises. It calls open for each test.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	for name, test := range map[string]func(*testing.T, *world){
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
		"a call that its caller ended is no failure":  ended,
		"a name that nobody made is refused":          zeroName,
		"no names are no work":                        noNames,
		"it runs once":                                runsOnce,
		"what it found is counted":                    counted,
		"two schemas on one server never meet":        schemas,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &world{T: t, Backend: open(t), schema: uuid.NewString()})
		})
	}
}

// world is a backend with the names of a schema of its own.
type world struct {
	*testing.T
	Backend
	schema string
}

func (w *world) names(keys ...string) []lock.Name {
	names := make([]lock.Name, len(keys))
	for i, k := range keys {
		names[i] = lock.NameOf(w.schema, "group", "tag", k)
	}
	return names
}

// afterDone is what is found under a name that was done.
func (w *world) afterDone() lock.Hold {
	if w.Marks() {
		return lock.DoneMarker
	}
	return lock.Mine
}

// worker is one process.
type worker struct {
	lock.Locker
	w     *world
	token string
}

func (w *world) worker(token string, o lock.Options) worker {
	w.Helper()
	return worker{w.Open(w.T, o), w, token}
}

// lock returns what it found under each key.
func (p worker) lock(keys ...string) []lock.Held {
	p.w.Helper()
	held, err := p.Lock(p.w.Context(), p.token, p.w.names(keys...))
	if err != nil {
		p.w.Fatalf("%s locks %v: %v", p.token, keys, err)
	}
	if len(held) != len(keys) {
		p.w.Fatalf("%s locks %v: %d outcomes, want %d", p.token, keys, len(held), len(keys))
	}
	return held
}

// finds locks the keys and says what is not as expected. A holder is known by its token.
func (p worker) finds(key string, want lock.Hold, holder ...string) {
	p.w.Helper()
	got := p.lock(key)[0]
	if got.Hold != want || len(holder) > 0 && got.Holder != holder[0] {
		p.w.Errorf("%s finds %q %v, held by %q, want %v %v", p.token, key, got.Hold, got.Holder, want, holder)
	}
}

func (p worker) release(keys ...string) {
	p.w.Helper()
	if err := p.Release(p.w.Context(), p.token, p.w.names(keys...)); err != nil {
		p.w.Fatalf("%s releases %v: %v", p.token, keys, err)
	}
}

func (p worker) done(body byte, keys ...string) {
	p.w.Helper()
	var marks []lock.Mark
	for _, name := range p.w.names(keys...) {
		marks = append(marks, lock.Mark{Name: name, BodyHash: hash(body)})
	}
	if err := p.Done(p.w.Context(), marks); err != nil {
		p.w.Fatalf("%s marks %v done: %v", p.token, keys, err)
	}
}

func (p worker) show(key string) lock.State {
	p.w.Helper()
	s, err := p.Show(p.w.Context(), p.w.names(key)[0])
	if err != nil {
		p.w.Fatalf("show %q: %v", key, err)
	}
	return s
}

// run runs the locker until the test ends or the returned function is called.
func (p worker) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			p.w.Errorf("%s runs: %v, want nil", p.token, err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	p.w.Cleanup(stop)
	return stop
}

func hash(body byte) (h [32]byte) {
	for i := range h {
		h[i] = body
	}
	return h
}

// await waits for a condition of the server.
func (w *world) await(what string, ok func() bool) {
	w.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(20 * time.Second); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			w.Fatalf("waited in vain: %s", what)
		}
	}
}
