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
	mu      sync.Mutex
	batches map[string]<-chan struct{} // closed when what the fast path did is settled; guarded by mu
}

// enter makes a batch known until settled is called, which must happen in any case and may happen twice.
func (h *inHand) enter(token string) (settled func()) {
	done := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.batches == nil {
		h.batches = map[string]<-chan struct{}{}
	}
	h.batches[token] = done
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.batches, token)
		close(done)
	})
}

// find is nil for a batch that is settled.
func (h *inHand) find(token string) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.batches[token]
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
			if settled := l.c.inHand.find(it.lock.holder); settled != nil {
				select {
				case <-settled:
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
