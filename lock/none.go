package lock

import (
	"context"
	"time"
)

// None is the Locker of an installation without a lock: every name is free, always.
type None struct{}

var _ Locker = None{}

// Lock says Mine of every name.
func (None) Lock(_ context.Context, _ string, names []Name) ([]Held, error) {
	return allMine(len(names)), nil
}

// Release does nothing.
func (None) Release(context.Context, string, []Name) error { return nil }

// Done does nothing.
func (None) Done(context.Context, []Mark) error { return nil }

// Show says that the name is free.
func (None) Show(context.Context, Name) (State, error) { return State{}, nil }

// Run waits for the end of ctx.
func (None) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Up says that nobody is asked, and that nothing is wrong with that.
func (None) Up() (up bool, since time.Time, cause error) { return false, time.Time{}, nil }

// Attempts returns 0: nobody was asked.
func (None) Attempts(Result) uint64 { return 0 }

func allMine(n int) []Held {
	held := make([]Held, n)
	for i := range held {
		held[i].Hold = Mine
	}
	return held
}
