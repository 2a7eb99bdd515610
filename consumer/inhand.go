package consumer

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
)

// inHand knows the batches of this process by the token of their locks, so that a lane which meets another lane's lock
// waits for that very batch instead of guessing how long it takes.
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
	// holderPatience is how long a lane waits for a batch of this process to be settled.
	holderPatience = time.Second
)

// waitForHolders returns when those who hold the locks of b's open items have had the time to be done with them. A
// batch comes here only after it is settled itself, so that no two wait for each other.
func (l *lane) waitForHolders(ctx context.Context, b *batch) error {
	limit, cancel := context.WithTimeout(ctx, holderPatience)
	defer cancel()
	strangers := false
	for _, it := range b.open {
		switch {
		case it.lock.hold != lock.HeldByOther:
		case !strings.HasPrefix(it.lock.holder, l.c.name+"/"):
			strangers = true
		default:
			if settled, ok := l.c.inHand.batches.Load(it.lock.holder); ok {
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
