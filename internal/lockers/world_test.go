package lockers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/lock"
)

// lockWorld has the names of a schema of its own, and what the tests of all kinds of lock do.
type lockWorld struct {
	*testing.T
	schema string
}

// openLock makes the lock of one process, which ends with the test.
func openLock(t *testing.T, s lockers.Servers, o lock.Options) *lockers.Lock {
	t.Helper()
	s.Name = "rollbackd test"
	l, err := lockers.Open(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func (w lockWorld) names(n int) []lock.Name {
	names := make([]lock.Name, n)
	for i := range names {
		names[i] = lock.NameOf(w.schema, "g", "t", fmt.Sprint(i))
	}
	return names
}

func marksOf(names []lock.Name) []lock.Mark {
	marks := make([]lock.Mark, len(names))
	for i, n := range names {
		marks[i].Name = n
	}
	return marks
}

func (w lockWorld) mine(l lock.Locker, token string, names []lock.Name) int {
	w.Helper()
	held, err := l.Lock(w.Context(), token, names)
	if err != nil {
		w.Fatal(err)
	}
	n := 0
	for _, h := range held {
		if h.Hold == lock.Mine {
			n++
		}
	}
	return n
}

func (w lockWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w lockWorld) runs(l lock.Locker) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.Run(ctx) })
	w.Cleanup(func() { cancel(); wg.Wait() })
}

func (w lockWorld) await(what string, ok func() bool) {
	w.Helper()
	poll.Until(w, what, ok)
}

// isAsked waits until the lock asks its servers again.
func (w lockWorld) isAsked(l lock.Locker) {
	w.Helper()
	w.await("it is asked again", func() bool { up, _, _ := l.Up(); return up })
}

// goesOnWithout locks names again and again while the servers are in trouble: all are ours, and nobody waits.
func (w lockWorld) goesOnWithout(l lock.Locker, names []lock.Name) {
	w.Helper()
	start := time.Now()
	for range 100 {
		if n := w.mine(l, "a", names); n != len(names) {
			w.Fatalf("%d names are mine, want %d", n, len(names))
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		w.Errorf("100 calls took %v", took)
	}
}

// changesHands takes names that a has lost for b: a's late release takes none of them away.
func (w lockWorld) changesHands(a, b lock.Locker, names []lock.Name) {
	w.Helper()
	if n := w.mine(b, "b", names); n != len(names) {
		w.Fatalf("%d names are free, want %d", n, len(names))
	}
	w.must(a.Release(w.Context(), "a", names))
	if n := w.mine(a, "a", names); n != 0 {
		w.Errorf("%d names were taken from b", n)
	}
}
