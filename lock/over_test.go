package lock

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// mute is a store that fails and says nothing of any name.
type mute struct{ Store }

func (mute) Take(context.Context, string, []Name) ([]Held, error) {
	return nil, errors.New("the server is away")
}

// Given a store that fails and returns nothing, when names are locked, then all go on without the lock, or none.
func TestAStoreThatFailsNeedNotSayAnything(t *testing.T) {
	t.Parallel()
	names := []Name{NameOf("s", "g", "t", "one"), NameOf("s", "g", "t", "two")}
	proceed, err := Over("the server", mute{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	held, err := proceed.Lock(t.Context(), "a", names)
	if err != nil {
		t.Fatal(err)
	}
	wantHolds(t, holdsOf(held), Mine, Mine)
	pause, err := Over("the server", mute{}, Options{OnError: Pause})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pause.Lock(t.Context(), "a", names); !errors.Is(err, ErrUnavailable) {
		t.Errorf("with policy pause Lock = %v, want that the lock is unavailable", err)
	}
}

// session is a store whose locks last as long as its process, as ephemeral nodes do. It fails once, when told.
type session struct {
	Store

	mu     sync.Mutex
	nodes  map[Name]string // guarded by mu
	broken bool            // guarded by mu
}

func (s *session) Take(_ context.Context, value string, names []Name) ([]Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return nil, errors.New("the server is away")
	}
	held := make([]Held, len(names))
	for i, n := range names {
		if s.nodes[n] == "" {
			s.nodes[n] = value
		}
		held[i] = ReadHeld(s.nodes[n], value)
	}
	return held, nil
}

func (s *session) GiveBack(_ context.Context, value string, names []Name) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range names {
		if s.nodes[n] == value {
			delete(s.nodes, n)
		}
	}
	return nil
}

func (*session) Renew(_ context.Context, names []Name, _ []string) (stands []bool, err error) {
	for range names {
		stands = append(stands, true)
	}
	return stands, nil
}

func (s *session) Probe(context.Context) error { return nil }

func (s *session) breaks(broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
}

func (s *session) standing() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.nodes)
}

// Given locks that do not expire while their process lives, when some are released and some are done while the server
// is not asked because another call has failed, then none stands in anybody's way when it is asked again.
func TestLocksThatWereOverWhileNobodyAskedAreGivenUp(t *testing.T) {
	t.Parallel()
	names := []Name{NameOf("s", "g", "t", "one"), NameOf("s", "g", "t", "two"), NameOf("s", "g", "t", "three")}
	store := &session{nodes: map[Name]string{}}
	l, err := Over("the server", store, Options{})
	if err != nil {
		t.Fatal(err)
	}
	held, err := l.Lock(t.Context(), "a", names[:2])
	if err != nil {
		t.Fatal(err)
	}
	wantHolds(t, holdsOf(held), Mine, Mine)
	store.breaks(true)
	if _, err := l.Lock(t.Context(), "b", names[2:]); err != nil {
		t.Fatal(err)
	}
	if up, _, _ := l.Up(); up {
		t.Fatal("the server is asked, want that it is taken for away")
	}
	store.breaks(false)

	released, done := l.Release(t.Context(), "a", names[:1]), l.Done(t.Context(), []Mark{{Name: names[1]}})
	if err := errors.Join(released, done); err != nil {
		t.Fatal(err)
	}
	if n := store.standing(); n != 2 {
		t.Fatalf("%d locks stand while nobody asks, want both", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	defer running.Wait()
	defer cancel()
	await(t, "nothing stands any more", func() bool { return store.standing() == 0 })
}
