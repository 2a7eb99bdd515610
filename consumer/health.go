package consumer

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Names of the dependencies in [State] and in the metric rollbackd_dependency_up.
const (
	DependencyRabbitMQ = "rabbitmq"
	DependencyMySQL    = "mysql"
	DependencyRedis    = "redis"
)

// State is a snapshot of what the engine is doing, for health pages.
type State struct {
	// Consuming: a session stands and lanes take deliveries.
	Consuming bool
	// Paused names why nothing is consumed, sorted; empty while consuming.
	Paused []string
	// Draining: a stop was asked for.
	Draining bool
	// Still is how long the laziest lane with a batch in hand has not moved; 0 when none has a batch.
	Still time.Duration
}

// health keeps what the engine is waiting for. It logs each change once.
type health struct {
	log *slog.Logger
	m   *metrics

	mu        sync.Mutex
	down      map[string]downSince // by what is missing; guarded by mu
	consuming bool                 // guarded by mu
	draining  bool                 // guarded by mu
	lanes     []*laneClock         // guarded by mu
}

type downSince struct {
	why string
	at  time.Time
}

// laneClock is when a lane last moved, in Unix nanoseconds; 0 while it has no batch. Its lane writes it.
type laneClock struct{ at atomic.Int64 }

func (c *laneClock) tick() { c.at.Store(time.Now().UnixNano()) }
func (c *laneClock) rest() { c.at.Store(0) }

func newHealth(log *slog.Logger, m *metrics) *health {
	return &health{log: log, m: m, down: map[string]downSince{}}
}

// missing says that what does not answer. It logs when that is news.
func (h *health) missing(ctx context.Context, what string, err error) {
	h.mu.Lock()
	_, known := h.down[what]
	if !known {
		h.down[what] = downSince{err.Error(), time.Now()}
	} else {
		h.down[what] = downSince{err.Error(), h.down[what].at}
	}
	h.mu.Unlock()
	if !known {
		h.m.down(what)
		h.log.WarnContext(ctx, "waiting for "+what, "err", err)
	}
}

// back says that what answers. It logs when that is news.
func (h *health) back(ctx context.Context, what string) {
	h.mu.Lock()
	was, known := h.down[what]
	delete(h.down, what)
	h.mu.Unlock()
	h.m.up(what)
	if known {
		h.log.InfoContext(ctx, what+" is back", "after", time.Since(was.at).Round(time.Millisecond))
	}
}

// names reports whether what is among the missing.
func (h *health) names(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, missing := h.down[what]
	return missing
}

func (h *health) set(consuming bool, lanes ...*laneClock) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.consuming, h.lanes = consuming, lanes
}

func (h *health) drain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
}

func (h *health) state() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := State{Consuming: h.consuming, Draining: h.draining}
	for _, what := range slices.Sorted(maps.Keys(h.down)) {
		s.Paused = append(s.Paused, what+": "+h.down[what].why)
	}
	now := time.Now().UnixNano()
	for _, c := range h.lanes {
		if at := c.at.Load(); at != 0 {
			s.Still = max(s.Still, time.Duration(now-at))
		}
	}
	return s
}
