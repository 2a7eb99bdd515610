package lock

import "context"

// Store is what a kind of lock does on its servers, and no more. Whether they are asked at all, what an error means,
// and which locks are renewed, is the business of what [Over] makes of it.
//
// All methods may be called by many goroutines and keep none of the slices they are given. Each ends within the
// [Options.Timeout] that the lock is made with.
type Store interface {
	// Take tries the names in few round trips and says of each what it found. What stands under a name afterwards that
	// is Mine is the value, for a LockTTL; [ReadHeld] judges what stands there already. A name that stands for the
	// value already is Mine again. A name of which nothing is known has the zero Hold; the error then says why. With
	// an error it may say nothing of any.
	Take(ctx context.Context, value string, names []Name) ([]Held, error)
	// GiveBack frees the names that stand for the value, and no other.
	GiveBack(ctx context.Context, value string, names []Name) error
	// Mark ends the locks of the names, whoever holds them, and leaves done markers where that is cheap.
	Mark(ctx context.Context, marks []Mark) error
	// Renew gives each name that stands for its value another LockTTL, and says of each whether it does.
	Renew(ctx context.Context, names []Name, values []string) (stands []bool, err error)
	// GiveUp is told of names that were held too long and are not renewed any more. Where locks expire by themselves it
	// has nothing to do.
	GiveUp(ctx context.Context, value string, names []Name) error
	// Probe asks what Take asks: a server that answers something else may still refuse that.
	Probe(ctx context.Context) error
	// Show looks at one name.
	Show(ctx context.Context, name Name) (State, error)
}

// Over makes a Locker of a store. The server is what the log says to be away, when it is. The options must be the
// store's.
func Over(server string, s Store, o Options) (Locker, error) {
	l := &over{s: s}
	if err := l.init(server, l, o); err != nil {
		return nil, err
	}
	return l, nil
}

type over struct {
	base
	s Store
}

var _ store = (*over)(nil)

func (l *over) take(ctx context.Context, value string, names []Name) ([]Held, error) {
	held, err := l.s.Take(ctx, value, names)
	if err != nil && len(held) != len(names) { // nothing is known of any
		held = make([]Held, len(names))
	}
	return held, err
}

func (l *over) giveBack(ctx context.Context, value string, names []Name) error {
	return l.s.GiveBack(ctx, value, names)
}

func (l *over) mark(ctx context.Context, marks []Mark) error { return l.s.Mark(ctx, marks) }

func (l *over) giveUp(ctx context.Context, value string, names []Name) error {
	return l.s.GiveUp(ctx, value, names)
}

func (l *over) probe(ctx context.Context) error { return l.s.Probe(ctx) }

func (l *over) renew(ctx context.Context, names []Name, values []string) error {
	stands, err := l.s.Renew(ctx, names, values)
	for i, ours := range stands {
		if !ours { // expired, lost, or another's by now: there is nothing to renew any more
			l.renewer.remove(values[i], names[i:i+1])
		}
	}
	return err
}

// Show looks at one name, whatever the lock's own health.
func (l *over) Show(ctx context.Context, name Name) (State, error) {
	if err := name.Check(); err != nil {
		return State{}, err
	}
	return l.s.Show(ctx, name)
}
