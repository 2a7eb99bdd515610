package consumer

import (
	"context"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/lock"
)

// schemaLock is the lock, with the names of the schema that MySQL answered with. A schema that was dropped and made
// again has another UUID, and so names of its own, which meet no mark of the old one.
type schemaLock struct {
	lock.Locker
	schemaID string // empty: nothing is locked, and the names are nobody's
}

func (s schemaLock) nameOf(k dedup.Identity) lock.Name {
	return lock.NameOf(s.schemaID, k.Group, k.Tag, k.Key)
}

// locks is the lock of all sessions. Its server is asked once a schema was met.
type locks struct {
	lock.Locker
	name   string // of the dependency that its server is
	policy lock.Policy
	met    context.Context // ends when a schema was met
	meet   context.CancelFunc
}

// run runs the lock until ctx ends.
func (k *locks) run(ctx context.Context) {
	select {
	case <-k.met.Done():
		_ = k.Run(ctx) // it runs once: there is no error
	case <-ctx.Done():
	}
}

// required says why nothing may be consumed; nil while the lock works, or is not needed.
func (k *locks) required() error {
	if k.policy != lock.Pause {
		return nil
	}
	return k.down()
}

// down says why the lock's server is not asked any more; nil while it is, and without a lock.
func (k *locks) down() error {
	_, _, cause := k.Up()
	return cause
}

// up is the metric's word for it.
func (k *locks) up() float64 {
	if up, _, _ := k.Up(); up && k.met.Err() != nil {
		return 1
	}
	return 0
}
