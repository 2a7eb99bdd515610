package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

func newEngine(cfg Config, h Handler, o Options, reg *registry) (*engine, error) {
	records, err := dedup.NewLog(o.DB, cfg.LogOptions())
	if err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	pool := records.Pool()
	locks := &locks{policy: cfg.LockOnError, name: cmp.Or(o.lockName, DependencyRedis)}
	locks.met, locks.meet = context.WithCancel(context.Background())
	if locks.Locker, err = o.locker(cfg); err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	calls, _ := h.(*callHandler)
	m := newMetrics(reg, locks, cfg.Queue, calls != nil)
	validator, _ := h.(Validator)
	publisher := cfg.amqp("run")
	consumers := publisher
	consumers.Budget = rabbit.NewBudget(cfg.MemoryBudget, cfg.Lanes+1)
	healthy := newHealth(cfg.Logger, m, cfg.HandlerTimeout, slices.Max(cfg.RetryDelays))
	most := mostStuck
	if calls != nil {
		most += calls.options(cfg).Concurrency
	}
	runs := &runner.Runner{
		Log: cfg.Logger, Grace: min(killGrace/4, (cfg.Lease-cfg.HandlerTimeout)/2), Most: most,
		Tell: func(ctx context.Context, stuck error) { healthy.degraded(ctx, handlerStuck, cfg.Queue, stuck) },
	}
	c := &engine{
		cfg: cfg, amqp: consumers,
		queues:  queues{TopologyConfig: cfg.topology(), warned: map[string]bool{}},
		records: records, validator: validator, locks: locks,
		publisher: rabbit.NewPublisher(publisher),
		tracing:   newTracing(cfg.TracerProvider, cfg.Queue),
		metrics:   m, log: cfg.Logger, health: healthy, runner: runs,
		breaker: &admission.Breaker{Now: time.Now, Limit: dedup.LetterLimit{
			Group: cfg.Group, Queue: cfg.Queue, Most: cfg.MaxDead, Window: cfg.MaxDeadWindow, Pause: cfg.BrakePause,
		}},
		contention: &admission.Contention[*item]{
			Patience: cfg.lockWait(), Memory: slices.Max(cfg.RetryDelays) + 2*cfg.HandlerTimeout, Size: cfg.BatchSize,
		},
		slots:     semaphore.NewWeighted(allSlots(cfg)),
		holders:   &holders{health: healthy, pool: pool, lease: cfg.Lease, every: cfg.lockWait() / 2},
		holding:   newHolding(healthy),
		opTimeout: cfg.HandlerTimeout + 2*time.Second,
		name:      processName(),
	}
	c.effects = &effects{engine: c, db: o.DB, pool: pool, handler: h}
	switch {
	case calls != nil:
		c.service = newService(calls, c)
		m.up(DependencyService)
	case cfg.Check:
		c.effects.checks = newChecks(cfg)
	}
	c.pause = newPause(c)
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rollbackd_held_deliveries", Help: "Deliveries whose copy a queue refuses, because it is full or gone.",
	}, func() float64 { return float64(c.holding.size()) })
	return c, nil
}

// mostStuck is how many calls may be stuck before Run ends, beside as many as are made at once of a function of
// [Calls]. One message that never comes back costs one in the fast path and one for each attempt.
const mostStuck = 16

// processName is host/pid/start: no other process has or had it.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%.40s/%d/%d", host, os.Getpid(), time.Now().UnixNano())
}

// consume works on the main queue and on the backstop until intake ends, or until one of them cannot even start.
func (c *engine) consume(intake, work context.Context) error {
	group, intake := errgroup.WithContext(intake)
	watching, stopWatching := context.WithCancel(intake)
	locking, stopLocking := context.WithCancel(work)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stopWatching()
	defer stopLocking()
	beside.Go(func() { c.pause.watch(watching) })
	beside.Go(func() { c.locks.run(locking) })
	for _, s := range []*source{c.mainQueue(), c.backstopQueue()} {
		group.Go(func() error { return s.sessions(intake, work) })
	}
	if c.relay != nil {
		group.Go(func() error { return c.relay.Run(intake) })
	}
	return group.Wait()
}

// close ends what outlives a session: claims that are pending, one last try; then the publisher.
func (c *engine) close(work context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(work), time.Second)
	defer cancel()
	if err := c.pending.settle(ctx, c.records); err != nil {
		c.log.WarnContext(ctx, "claims stay until their lease ends", "err", err)
	}
	if err := c.publisher.Close(ctx); err != nil { // what it had to publish was confirmed, or its message not acked
		c.log.WarnContext(ctx, "close the publisher", "err", err)
	}
}

// locker is the lock that the options name.
func (o Options) locker(cfg Config) (lock.Locker, error) {
	switch {
	case o.Lock != nil && o.Redis != nil:
		return nil, errors.New("Options have Redis and Lock: keep one")
	case o.Redis != nil:
		return lock.NewRedis(o.Redis, cfg.lockOptions())
	case o.Lock != nil:
		return o.Lock, nil
	}
	return lock.None{}, nil
}
