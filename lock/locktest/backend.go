// Package locktest is what every [lock.Locker] must do, as tests: a backend over another server passes [Run] and
// nothing else needs to be known of it.
//
// What may live here: the suite, and what it asks of a backend ([Backend]). What must not: anything of one server,
// which is for the backend's own tests.
package locktest

import (
	"context"
	"fmt"
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
	s := require.Get(p.Show(p.w.Context(), p.w.Names(key)[0]))(p.w)
	return s
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
	took := time.Since(start)
	assert.That(p.w, took <= 5*time.Second, "100 calls took %v", took)
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
