package lock

import (
	"context"
	"errors"
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
