package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/maintenance"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
	"github.com/rollbackd/rollbackd/lock"
)

// Options are what [New] works with in place of what [Open] makes.
type Options struct {
	// DB holds the consumer log and the handler's tables; [dedup.Open] makes one with the settings that are needed. Its
	// pool must allow more than 2 × Lanes connections, and twelve more unless KeeperDB is set.
	DB *gorm.DB
	// KeeperDB is the keeper's pool. Nil: DB, so that what it does may take connections from lanes, and a statement of its
	// waits for locks as long as a handler's.
	KeeperDB *gorm.DB
	// Redis holds the lock; [lock.OpenRedis] makes a client with the settings that are needed. Nil: no lock, the consumer
	// log alone keeps the promise.
	Redis redis.UniversalClient
	// Lock is another lock in place of Redis; lock/locktest says what it must hold. Its own settings take the place of
	// Config.LockTTL and DoneTTL.
	Lock lock.Locker

	lockName    string       // of the dependency that the lock's server is; empty: DependencyRedis
	connections *connections // to the pools, which Open counts
}

// locker is the lock that the options name; nil: none.
func (o Options) locker(cfg Config) (lock.Locker, error) {
	switch {
	case o.Lock != nil && o.Redis != nil:
		return nil, errors.New("Options have Redis and Lock: keep one")
	case o.Redis == nil:
		return o.Lock, nil
	}
	return lock.NewRedis(o.Redis, cfg.lockOptions())
}

// ErrDrainTimeout says that a stop took longer than DrainTimeout: what was in hand is abandoned, nothing is lost.
var ErrDrainTimeout = errors.New("not drained in time: what was in hand goes back to the broker")

// Consumer is the engine. Make one with [Open] or [New], run it once.
type Consumer struct {
	cfg       Config
	db        *gorm.DB                 // to migrate
	keeper    *maintenance.Maintenance // nil: WithoutKeeper
	closers   []io.Closer              // what Open opened, in that order
	keyFrom   []wire.KeySource
	amqp      rabbit.Config
	topology  rabbit.TopologyConfig
	records   *dedup.Log
	effects   *effects
	service   *service // nil: the handler writes in a transaction
	validator Validator
	locks     *locks
	publisher *rabbit.Publisher
	metrics   *metrics
	health    *health
	holders   *holders
	runner    *runner
	brake     *brake
	pause     *pause // ordered by a person
	turns     *turns
	debts     debts
	suspects  suspects
	obstacles *obstacles
	inHand    inHand
	holding   *holding
	depths    *depths
	tracing   *tracing // nil: none
	declaring sync.Mutex
	declared  bool            // the topology, at least once; guarded by declaring
	warned    map[string]bool // about the topology; guarded by declaring
	commits   atomic.Uint64   // transactions that applied something
	count     atomic.Uint64   // names given out by lanes
	log       *slog.Logger
	opTimeout time.Duration
	name      string // host/pid/start: the first parts of every owner
	ran       atomic.Bool
}

// New checks cfg and makes a consumer that hands messages to h, on pools of the caller's own, which it leaves open. It
// touches no server. [Open] makes the pools too.
func New(cfg Config, h Handler, o Options) (*Consumer, error) {
	cfg = cfg.withDefaults()
	keyFrom, err := cfg.check(h)
	if err != nil {
		return nil, err
	}
	if o.DB == nil {
		return nil, errors.New("consumer configuration: Options need a DB; Open makes one")
	}
	return newConsumer(cfg, keyFrom, h, o)
}

// newConsumer joins an engine and its keeper from a Config that was checked.
func newConsumer(cfg Config, keyFrom []wire.KeySource, h Handler, o Options) (*Consumer, error) {
	c, err := newEngine(cfg, keyFrom, h, o)
	if err != nil || cfg.WithoutKeeper {
		return c, err
	}
	c.keeper, err = newKeeper(cfg, cmp.Or(o.KeeperDB, o.DB), o.Lock, c.health)
	return c, err
}

func newEngine(cfg Config, keyFrom []wire.KeySource, h Handler, o Options) (*Consumer, error) {
	records, err := dedup.NewLog(o.DB, cfg.logOptions())
	if err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	pool, err := o.DB.DB()
	if err != nil {
		return nil, fmt.Errorf("consumer: the database handle: %w", err)
	}
	locks := &locks{policy: cfg.LockOnError, name: cmp.Or(o.lockName, DependencyRedis)}
	if locks.locker, err = o.locker(cfg); err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	calls, _ := h.(*callHandler)
	m, err := newMetrics(cfg.Registerer, locks, cfg.Queue, calls != nil)
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	validator, _ := h.(Validator)
	if o.connections == nil {
		o.connections = newConnections(DependencyRabbitMQ)
	}
	if err := cfg.Registerer.Register(o.connections.vec); err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	consumers := cfg.amqp("run")
	consumers.Opened = o.connections.opened(DependencyRabbitMQ)
	publisher := consumers
	healthy := newHealth(cfg.Logger, m, cfg.HandlerTimeout, slices.Max(cfg.RetryDelays))
	watched, err := newDepths(cfg, consumers, healthy.blocked)
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	consumers.Budget = rabbit.NewBudget(cfg.MemoryBudget, cfg.Lanes+1)
	runs := newRunner(cfg, healthy)
	c := &Consumer{
		cfg: cfg, keyFrom: keyFrom, amqp: consumers,
		topology: cfg.topology(), db: o.DB, records: records, validator: validator, locks: locks,
		effects: &effects{
			db: o.DB, pool: pool, handler: h, timeout: cfg.HandlerTimeout, hook: cfg.Hook, metrics: m, runner: runs,
		},
		publisher: rabbit.NewPublisher(publisher),
		depths:    watched,
		tracing:   newTracing(cfg.TracerProvider, cfg.Queue),
		warned:    map[string]bool{},
		metrics:   m, log: cfg.Logger, health: healthy, holders: newHolders(cfg, healthy, pool), runner: runs,
		brake:     newBrake(cfg, time.Now),
		turns:     newTurns(cfg.Lanes + 1),
		obstacles: newObstacles(cfg),
		opTimeout: cfg.HandlerTimeout + 2*time.Second,
		name:      processName(),
	}
	if calls != nil {
		runs.most += calls.options(cfg).Concurrency
		c.service = newService(calls, cfg, c.runner, m, c.tracing)
		m.up(DependencyService)
	}
	c.holding = newHolding(c.health)
	c.pause = newPause(c)
	m.holding.Store(c.holding)
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

// Run consumes until ctx ends, then drains: it takes nothing new, finishes what is in hand and returns nil, or
// [ErrDrainTimeout] after DrainTimeout. Servers that are away are waited for, at the start as later. A schema that was
// never migrated is an error at the start. Run may be called once; what [Open] opened is closed with its end.
//
// A handler that does not return is left behind. While there are few such calls all else goes on, and the end of Run is
// an [ErrStuck] that names their messages; when there are many, Run ends by itself. The process must end then.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.ran.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called before; make a new Consumer")
	}
	var wg sync.WaitGroup
	keeping, stopKeeper := context.WithCancel(ctx) // it ends with the intake
	defer stopKeeper()
	wg.Go(func() { c.depths.run(keeping) })
	if c.keeper != nil {
		wg.Go(func() { c.keeper.Run(keeping) })
	}
	err := c.run(ctx)
	stopKeeper()
	wg.Wait()
	return errors.Join(err, c.runner.left(), c.Close())
}

// run consumes until intake ends, and drains.
func (c *Consumer) run(intake context.Context) error {
	work, kill := context.WithCancelCause(context.WithoutCancel(intake))
	defer kill(nil)
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- c.consume(intake, work) })

	select {
	case err := <-done:
		return err
	case <-intake.Done():
	}
	c.health.drain()
	c.log.InfoContext(intake, "draining", "timeout", c.cfg.DrainTimeout)
	late := time.NewTimer(c.cfg.DrainTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
	}
	kill(ErrDrainTimeout)
	// A lane that does not return even now is stuck in a handler or on a frozen server; the process ends without it.
	grace := time.NewTimer(killGrace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
	return ErrDrainTimeout
}

// Close closes what [Open] opened. Run does it at its end; it is for a Consumer that is never run.
func (c *Consumer) Close() error {
	var errs []error
	for _, closer := range slices.Backward(c.closers) {
		errs = append(errs, closer.Close())
	}
	c.closers = nil
	return errors.Join(errs...)
}

// killGrace is how long lanes have to notice that the drain is over.
const killGrace = 2 * time.Second

// State says what the engine is doing.
func (c *Consumer) State() State {
	s := c.health.state(c.obstacles.stand())
	s.Still = max(s.Still, c.runner.still())
	if err := c.locks.down(); err != nil && !c.health.names(c.locks.name) {
		without := c.locks.name + ": " + err.Error()
		if c.cfg.LockOnError != lock.Pause { // the lanes go on without it
			s.Degraded = append(s.Degraded, without)
			slices.Sort(s.Degraded)
		} else {
			s.Paused = append(s.Paused, without)
		}
	}
	return s
}

func (c *Consumer) at(p Point) {
	if c.cfg.Hook != nil {
		c.cfg.Hook(p)
	}
}
