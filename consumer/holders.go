package consumer

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// holders finds out whose the locks are that are waited for, once that has lasted for a lease. It asks only beside a
// statement that has no answer yet, so nobody asks while nobody waits.
type holders struct {
	health *health
	pool   *sql.DB
	lease  time.Duration
	every  time.Duration // how long a statement is without an answer, and between two questions

	mu     sync.Mutex     // held while it is asked
	asked  time.Time      // guarded by mu
	since  time.Time      // when the contention of told began; guarded by mu
	told   map[int64]bool // the connections that the log has named; guarded by mu
	hidden bool           // the log has said that they cannot be seen; guarded by mu
}

// beside looks from time to time until stop is called. Where others flow a wait may be of the shortest.
func (h *holders) beside(ctx context.Context) (stop func()) {
	if time.Since(h.health.contendedSince()) < h.lease {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for wait.For(ctx, min(h.every, admission.ShortestLockWait/2)) == nil {
			h.look(ctx)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// look asks who it is, unless another worker does or just did. Whom it finds is told, and logged once.
func (h *holders) look(ctx context.Context) {
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	if time.Since(h.asked) < h.every {
		return
	}
	h.asked = time.Now()
	found, err := mysqldb.Holders(ctx, h.pool, h.lease)
	switch {
	case mysqldb.Answered(err):
		h.health.heldBy("who cannot be seen: " + err.Error())
		if !h.hidden {
			h.hidden = true
			h.health.log.WarnContext(ctx, "who holds the locks cannot be seen", "err", err)
		}
		return
	case err != nil || ctx.Err() != nil:
		return // the statement has its answer, or MySQL is away, which others tell of
	}
	if since := h.health.contendedSince(); !since.Equal(h.since) {
		h.since, h.told = since, map[int64]bool{}
	}
	var who []string
	for _, one := range found {
		who = append(who, one.String())
		if h.told[one.Connection] {
			continue
		}
		h.told[one.Connection] = true
		h.health.log.WarnContext(ctx, "somebody holds rows that messages wait for", "connection", one.Connection,
			"user", one.User, "host", one.Host, "table", one.Table, "open", one.Open, "statement", one.Statement,
			"ends_it", one.End())
	}
	h.health.heldBy(strings.Join(who, "; "))
}
