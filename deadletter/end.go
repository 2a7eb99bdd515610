package deadletter

import "context"

// end is what becomes of the letters that are to go: replayed, or discarded.
type end interface {
	// act brings letters, each of another identity, to this end, and notes those that stay. Its error is one after which
	// the run must end.
	act(ctx context.Context, letters []*letter) error
}

// dryEnd counts what another end would have done.
type dryEnd struct {
	*run
	counter *int // of the tally
}

func (e *dryEnd) act(_ context.Context, letters []*letter) error {
	for _, lt := range letters {
		*e.counter++
		e.tally.done(lt)
		e.tally.mended(lt)
		e.tally.Duplicates += len(lt.followers)
	}
	return nil
}
