package relay

import (
	"context"
	"log/slog"
	"sync"
)

// troubles logs that something does not work, and that it works again: once each.
type troubles struct {
	mu     sync.Mutex
	known  map[string]bool
	absent bool // RabbitMQ, when it was last asked
}

// told takes in how a piece of work ended that has this name when it fails.
func (t *troubles) told(ctx context.Context, log *slog.Logger, what string, err error) {
	if err != nil && ctx.Err() != nil {
		return // it was cut off
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if (err != nil) == t.known[what] {
		return
	}
	if t.known == nil {
		t.known = map[string]bool{}
	}
	t.known[what] = err != nil
	if err != nil {
		log.ErrorContext(ctx, what, "err", err)
	} else {
		log.InfoContext(ctx, "works again: "+what)
	}
}

// broker takes in whether RabbitMQ gave no verdict on a message (away), or confirmed one.
func (t *troubles) broker(ctx context.Context, log *slog.Logger, away error, confirmed bool) {
	if away == nil && !confirmed {
		return
	}
	t.told(ctx, log, "RabbitMQ does not confirm", away)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.absent = away != nil
}

// away reports whether RabbitMQ gave no verdict when it was last asked.
func (t *troubles) away() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.absent
}
