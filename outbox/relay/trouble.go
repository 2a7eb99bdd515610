package relay

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// What may not work, as the log says it.
const (
	noTable   = "the outbox cannot be read"
	noDelete  = "what was published cannot be taken out of the outbox; it is sent again"
	noBroker  = "RabbitMQ cannot be reached"
	noConfirm = "RabbitMQ does not confirm"
)

// troubles logs that something does not work, and that it works again: once each.
type troubles struct {
	log *slog.Logger

	mu    sync.Mutex
	known map[string]trouble // by what does not work; guarded by mu
}

type trouble struct {
	why string
	at  time.Time // when it was last met
}

// told takes in how a piece of work ended that has this name when it fails.
func (t *troubles) told(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() != nil {
		return // it was cut off
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, before := t.known[what]
	switch {
	case err != nil:
		t.known[what] = trouble{err.Error(), time.Now()}
		if !before {
			t.log.ErrorContext(ctx, what, "err", err)
		}
	case before:
		delete(t.known, what)
		t.log.InfoContext(ctx, "works again: "+what)
	}
}

// met reports whether this did not work when it was last tried.
func (t *troubles) met(what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, met := t.known[what]
	return met
}

// forget drops what was not met for so long while nothing was due: another relay has done what failed here.
func (t *troubles) forget(ctx context.Context, after time.Duration) {
	for _, what := range []string{noDelete, noConfirm} {
		t.mu.Lock()
		last, met := t.known[what]
		t.mu.Unlock()
		if met && time.Since(last.at) > after {
			t.told(ctx, what, nil)
		}
	}
}

// list is what does not work, by the server to blame and with the reason.
func (t *troubles) list() (all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for what, it := range t.known {
		server := "mysql"
		if strings.HasPrefix(what, "RabbitMQ") {
			server = "rabbitmq"
		}
		all = append(all, server+": "+what+": "+it.why)
	}
	slices.Sort(all)
	return all
}
