package consumer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// engine is what the sessions, workers and attempts of a process share. It must not know who runs it, nor migrate, keep
// or watch anything: that is the front door's.
type engine struct {
	cfg       Config
	name      string // host/pid/start: the first parts of every owner
	log       *slog.Logger
	opTimeout time.Duration
	validator Validator

	// What is outside.
	amqp      rabbit.Config
	queues    queues
	publisher publisher
	records   *dedup.Log
	effects   *effects
	service   *service // nil: the handler writes in a transaction
	locks     *locks
	relay     *relay.Relay // nil: none

	// What is seen of it.
	metrics *metrics
	health  *health
	tracing *tracing // nil: none

	// What workers know of each other.
	breaker    *admission.Breaker // too much fails: nothing, or little, is tried
	contention *admission.Contention[*item]
	strikes    admission.Strikes
	slots      *semaphore.Weighted // who runs the handler at the same time
	holders    *holders
	pending    pending // claims to be given back before anything new is tried
	runner     *runner.Runner
	pause      *pause // ordered by a person
	inHand     inHand
	holding    *holding
	commits    atomic.Uint64 // transactions that applied something
	count      atomic.Uint64 // names given out by workers
}

// publisher sends copies and letters: a [rabbit.Publisher], but in a rehearsal.
type publisher interface {
	Publish(ctx context.Context, batch []rabbit.Publishing) []error
	Renew()
	Close(ctx context.Context) error
}

func (c *engine) at(p Point) {
	if c.cfg.Hook != nil {
		c.cfg.Hook(p)
	}
}
