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

	"github.com/rollbackd/rollbackd/consumer/internal/admission"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

func newEngine(cfg Config, h Handler, o Options, reg *registry) (*engine, error) {
	records, err := dedup.NewLog(o.DB, cfg.LogOptions())
	if err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	pool, err := o.DB.DB()
	if err != nil {
		return nil, fmt.Errorf("consumer: the database handle: %w", err)
	}
	locks := &locks{policy: cfg.LockOnError, name: cmp.Or(o.lockName, DependencyRedis)}
	locks.met, locks.meet = context.WithCancel(context.Background())
	if locks.Locker, err = o.locker(cfg); err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	calls, _ := h.(*callHandler)
	m := newMetrics(reg, locks, cfg.Queue, calls != nil)
	reg.MustRegister(cfg.connections)
	validator, _ := h.(Validator)
	publisher := cfg.amqp("run")
	consumers := publisher
	consumers.Budget = rabbit.NewBudget(cfg.MemoryBudget, cfg.Lanes+1)
	healthy := newHealth(cfg.Logger, m, cfg.HandlerTimeout, slices.Max(cfg.RetryDelays))
	runs := newRunner(cfg, healthy)
	c := &engine{
		cfg: cfg, amqp: consumers,
		queues:  queues{TopologyConfig: cfg.topology(), warned: map[string]bool{}},
		records: records, validator: validator, locks: locks,
		effects: &effects{
			db: o.DB, pool: pool, handler: h, timeout: cfg.HandlerTimeout, hook: cfg.Hook, metrics: m, runner: runs,
		},
		publisher: rabbit.NewPublisher(publisher),
		tracing:   newTracing(cfg.TracerProvider, cfg.Queue),
		metrics:   m, log: cfg.Logger, health: healthy, runner: runs,
		breaker: admission.NewBreaker(dedup.LetterLimit{Group: cfg.Group, Queue: cfg.Queue, Most: cfg.MaxDead,
			Window: cfg.MaxDeadWindow, Pause: cfg.BrakePause}, time.Now),
		contention: admission.NewContention[*item](
			cfg.lockWait(), slices.Max(cfg.RetryDelays)+2*cfg.HandlerTimeout, cfg.BatchSize),
		slots: newSlots(cfg.Lanes + 1), holders: newHolders(cfg, healthy, pool),
		holding:   newHolding(healthy),
		opTimeout: cfg.HandlerTimeout + 2*time.Second,
		name:      processName(),
	}
	if calls != nil {
		runs.most += calls.options(cfg).Concurrency
		c.service = newService(calls, cfg, c.runner, m, c.tracing)
		m.up(DependencyService)
	}
	c.pause = newPause(c)
	promauto.With(reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rollbackd_held_deliveries", Help: "Deliveries whose copy a queue refuses, because it is full or gone.",
	}, func() float64 { return float64(c.holding.size()) })
	return c, nil
}

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
