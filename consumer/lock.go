package consumer

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/dedup"
)

// locks keeps the lock of the schema that MySQL answered with last, and runs it. A schema that was dropped and made
// again has another UUID and so a lock of its own, which meets no mark of the old one.
type locks struct {
	client  redis.UniversalClient // nil: no lock
	options dedup.RedisLockOptions

	mu      sync.Mutex
	current *dedup.RedisLock  // guarded by mu
	stop    func()            // ends and joins current's Run; guarded by mu
	earlier map[string]uint64 // attempts of the locks before current, by result; guarded by mu
}

// use returns the locker for a schema; its Run lives until close.
func (k *locks) use(ctx context.Context, schemaID string) (dedup.Locker, error) {
	if k.client == nil {
		return dedup.NoLock{}, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current != nil && k.options.SchemaID == schemaID {
		return k.current, nil
	}
	k.end()
	k.options.SchemaID = schemaID
	lock, err := dedup.NewRedisLock(k.client, k.options)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { _ = lock.Run(ctx) }) // a new lock runs once: there is no error
	k.current, k.stop = lock, func() { cancel(); wg.Wait() }
	return lock, nil
}

func (k *locks) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end()
}

// end stops current and keeps its counts. The caller holds mu.
func (k *locks) end() {
	if k.current == nil {
		return
	}
	k.stop()
	for _, r := range dedup.LockResults() {
		k.earlier[r.String()] += k.current.Attempts(r)
	}
	k.current = nil
}

// attempts is how many identities were looked at, with this result.
func (k *locks) attempts(r dedup.LockResult) float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.earlier[r.String()]
	if k.current != nil {
		n += k.current.Attempts(r)
	}
	return float64(n)
}

// up reports whether Redis is asked and answers.
func (k *locks) up() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return false
	}
	up, _, _ := k.current.Up()
	return up
}

// required says why nothing may be consumed; nil while the lock works, or is not needed.
func (k *locks) required() error {
	if k.options.OnError != dedup.LockPause {
		return nil
	}
	return k.down()
}

// down says why Redis is not asked; nil while it is, and without a lock.
func (k *locks) down() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current == nil {
		return nil
	}
	_, _, cause := k.current.Up()
	return cause
}
