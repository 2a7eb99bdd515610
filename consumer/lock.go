package consumer

import (
	"context"
	"sync"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/lock"
)

// schemaLock is the lock, with the names of the schema that MySQL answered with. A schema that was dropped and made
// again has another UUID, and so names of its own, which meet no mark of the old one.
type schemaLock struct {
	lock.Locker
	schemaID string // empty: nothing is locked, and the names are nobody's
}

// without is no lock at all.
func without() schemaLock { return schemaLock{Locker: lock.None{}} }

func (s schemaLock) nameOf(k dedup.Identity) lock.Name {
	return lock.NameOf(s.schemaID, k.Group, k.Tag, k.Key)
}

// locks runs the lock of all sessions.
type locks struct {
	locker lock.Locker // nil: no lock
	name   string      // of the dependency that its server is
	policy lock.Policy

	mu   sync.Mutex
	stop func() // ends and joins its Run; nil before it runs; guarded by mu
}

// use returns the lock for a schema; its Run lives until close.
func (k *locks) use(ctx context.Context, schemaID string) schemaLock {
	if k.locker == nil {
		return without()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop == nil {
		ctx, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = k.locker.Run(ctx) }) // it runs once: there is no error
		k.stop = func() { cancel(); wg.Wait() }
	}
	return schemaLock{k.locker, schemaID}
}

func (k *locks) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stop != nil {
		k.stop()
	}
}

func (k *locks) runs() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stop != nil
}

// attempts is how many identities were looked at, with this result.
func (k *locks) attempts(r lock.Result) float64 {
	if k.locker == nil {
		return 0
	}
	return float64(k.locker.Attempts(r))
}

// up reports whether the lock's server is asked and answers.
func (k *locks) up() bool {
	if k.locker == nil || !k.runs() {
		return false
	}
	up, _, _ := k.locker.Up()
	return up
}

// required says why nothing may be consumed; nil while the lock works, or is not needed.
func (k *locks) required() error {
	if k.policy != lock.Pause {
		return nil
	}
	return k.down()
}

// down says why the lock's server is not asked; nil while it is, and without a lock.
func (k *locks) down() error {
	if k.locker == nil || !k.runs() {
		return nil
	}
	_, _, cause := k.locker.Up()
	return cause
}
