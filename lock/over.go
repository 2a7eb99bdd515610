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
	// Renew gives each name that stands for its value another LockTTL, and says of each whether it does. With an error it
	// may say so of the first ones only, or of none.
	Renew(ctx context.Context, names []Name, values []string) (stands []bool, err error)
	// GiveUp is told of names that are not renewed any more: they were held too long, or were over while the server was
	// not asked. Where locks expire by themselves it has nothing to do.
	GiveUp(ctx context.Context, value string, names []Name) error
	// Probe asks what Take asks: a server that answers something else may still refuse that.
	Probe(ctx context.Context) error
	// Show looks at one name.
	Show(ctx context.Context, name Name) (State, error)
}

// Over makes a Locker of a store. The server is what the log says to be away, when it is. The options must be the
// store's.
func Over(server string, s Store, o Options) (Locker, error) {
	l, err := newBase(server, s, o)
	if err != nil {
		return nil, err
	}
	return l, nil
}
