package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/lock/locktest"
)

// session is a store whose locks last as long as its process, as ephemeral nodes do. When told it fails, and says
// nothing of any name.
type session struct {
	lock.Store
	mu     sync.Mutex
	nodes  map[lock.Name]string // guarded by mu
	broken bool                 // guarded by mu
}

func (s *session) Take(_ context.Context, value string, names []lock.Name) ([]lock.Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return nil, errors.New("the server is away")
	}
	held := make([]lock.Held, len(names))
	for i, n := range names {
		if s.nodes[n] == "" {
			s.nodes[n] = value
		}
		held[i] = lock.ReadHeld(s.nodes[n], value)
	}
	return held, nil
}

func (s *session) GiveBack(_ context.Context, value string, names []lock.Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		if s.nodes[n] == value {
			delete(s.nodes, n)
		}
	}
	return nil
}

func (*session) Renew(_ context.Context, names []lock.Name, _ []string) (stands []bool, err error) {
	for range names {
		stands = append(stands, true)
	}
	return stands, nil
}

func (s *session) Probe(context.Context) error { return nil }

// breaks has calls fail or not, and says how many locks stand.
func (s *session) breaks(broken bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
	return len(s.nodes)
}

// Given a store that fails and returns nothing, when names are locked, then all go on without the lock, or none; and
// given locks that do not expire while their process lives, when some are released and some are done while the server
// is not asked because another call has failed, then none stands in anybody's way when it is asked again.
func TestLocksThatWereOverWhileNobodyAskedAreGivenUp(t *testing.T) {
	t.Parallel()
	w, store := locktest.NewWorld(t, nil), &session{nodes: map[lock.Name]string{}}
	open := func(policy lock.Policy) locktest.Worker {
		l := require.Get(lock.Over("the server", store, lock.Options{OnError: policy}))(w.T)
		return w.Of(l, "a")
	}
	a, pausing := open(lock.Proceed), open(lock.Pause)
	a.Finds(lock.Mine, "", "one", "two")
	store.breaks(true)
	a.As("b").Finds(lock.Mine, "", "three", "four")
	if _, err := pausing.Lock(t.Context(), "a", w.Names("one")); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("with policy pause Lock = %v, want that the lock is unavailable", err)
	}
	up, _, _ := a.Up()
	require.That(t, !up, "the server is asked, want that it is taken for away")
	store.breaks(false)
	a.GiveBack("one")
	a.Ends(0, "two")
	require.Is(t, store.breaks(false), 2, "locks stand while nobody asks")
	a.Runs()
	w.Await("nothing stands any more", func() bool { return store.breaks(false) == 0 })
}
