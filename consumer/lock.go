package consumer

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
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

// inHand knows the batches of this process by the token of their locks, so that a worker which meets another worker's
// lock waits for that very batch instead of guessing how long it takes.
type inHand struct {
	batches sync.Map // a context that ends when what the fast path did is settled, by token
}

// enter makes a batch known until settled is called, which must happen in any case and may happen twice.
func (h *inHand) enter(token string) (settled func()) {
	done, cancel := context.WithCancel(context.Background())
	h.batches.Store(token, done)
	return func() {
		h.batches.Delete(token)
		cancel()
	}
}

const (
	// lookAgainAfter is the pause before a lock that another process holds is tried once more: most holders are done by
	// then.
	lookAgainAfter = 20 * time.Millisecond
	// holderPatience is how long a worker waits for a batch of this process to be settled.
	holderPatience = time.Second
)

// waitForHolders returns when those who hold the locks of b's open items have had the time to be done with them. A
// batch comes here only after it is settled itself, so that no two wait for each other.
func (w *worker) waitForHolders(ctx context.Context, b *batch) error {
	limit, cancel := context.WithTimeout(ctx, holderPatience)
	defer cancel()
	strangers := false
	for _, it := range b.open {
		switch {
		case it.lock.hold != lock.HeldByOther:
		case !strings.HasPrefix(it.lock.holder, w.c.name+"/"):
			strangers = true
		default:
			if settled, ok := w.c.inHand.batches.Load(it.lock.holder); ok {
				select {
				case <-settled.(context.Context).Done():
				case <-limit.Done():
				}
			}
		}
	}
	if strangers {
		return wait.For(ctx, lookAgainAfter)
	}
	return context.Cause(ctx)
}
