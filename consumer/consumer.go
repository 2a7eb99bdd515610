package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/semaphore"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Options are the servers and sinks an engine works with.
type Options struct {
	// AMQPURLs are tried in turn.
	AMQPURLs []string
	// DB holds consumer_log and the handler's tables; [dedup.Open] makes one with the settings that are needed. Its pool
	// must have more than 2 × Lanes connections.
	DB *gorm.DB
	// Records is the consumer log in DB. Its Lease, Delays and MaxAttempts must be Config's Lease, RetryDelays and
	// MaxAttempts; New cannot see that. A log that allows fewer attempts keeps failed messages in the retry queues for ever.
	Records *dedup.Log
	// Redis holds the lock; [dedup.OpenRedis] makes a client with the settings that are needed. Nil: no lock, the consumer
	// log alone keeps the promise.
	Redis redis.UniversalClient
	// Registerer takes the metrics. Nil: a registry of its own.
	Registerer prometheus.Registerer
	// Logger takes what changes: waiting, back, dead letters. Nil: slog.Default.
	Logger *slog.Logger
}

func (o Options) validate(cfg Config, h Handler) error {
	var errs []error
	if h == nil {
		errs = append(errs, errors.New("no Handler"))
	}
	if o.DB == nil || o.Records == nil {
		errs = append(errs, errors.New("Options need DB and Records"))
	}
	if o.Records != nil {
		// A log with other limits than the engine would refuse what the engine believes possible, for ever.
		log := o.Records.Options()
		if log.MaxAttempts != cfg.MaxAttempts || log.Lease != cfg.Lease || !slices.Equal(log.Delays, cfg.RetryDelays) {
			errs = append(errs, fmt.Errorf("the log was made with MaxAttempts %d, Lease %v, Delays %v, which must be those of Config: %d, %v, %v",
				log.MaxAttempts, log.Lease, log.Delays, cfg.MaxAttempts, cfg.Lease, cfg.RetryDelays))
		}
	}
	if len(o.AMQPURLs) == 0 {
		errs = append(errs, errors.New("Options need AMQPURLs"))
	}
	for _, raw := range o.AMQPURLs {
		if err := rabbit.CheckURL(raw); err != nil {
			errs = append(errs, fmt.Errorf("AMQPURLs: %w", err))
		}
	}
	return errors.Join(errs...)
}

// ErrDrainTimeout says that a stop took longer than DrainTimeout: what was in hand is abandoned, nothing is lost.
var ErrDrainTimeout = errors.New("not drained in time: what was in hand goes back to the broker")

// Consumer is the engine. Make one with [New], run it once.
type Consumer struct {
	cfg       Config
	keyFrom   []wire.KeySource
	amqp      rabbit.Config
	topology  rabbit.TopologyConfig
	records   *dedup.Log
	effects   *effects
	validator Validator
	locks     *locks
	locker    dedup.Locker // of the schema that the present session met; only sessions changes it, while no lane runs
	publisher *rabbit.Publisher
	metrics   *metrics
	health    *health
	brake     *brake
	claims    *claims
	debts     debts
	inHand    inHand
	declared  bool            // the topology, at least once; only sessions touches it
	warned    map[string]bool // about the topology; only sessions touches it
	commits   atomic.Uint64   // transactions that applied something
	count     atomic.Uint64   // names given out by lanes
	log       *slog.Logger
	opTimeout time.Duration
	name      string // host/pid/start: the first parts of every owner
	ran       atomic.Bool
}

// New checks cfg and makes an engine that hands messages to h. It touches no server.
func New(cfg Config, h Handler, o Options) (*Consumer, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.validate(), o.validate(cfg, h)); err != nil {
		return nil, fmt.Errorf("consumer configuration: %w", err)
	}
	keyFrom, err := wire.ParseKeySources(cfg.KeyFrom)
	if err != nil {
		return nil, fmt.Errorf("consumer configuration: KeyFrom: %w", err)
	}
	pool, err := o.DB.DB()
	if err != nil {
		return nil, fmt.Errorf("consumer: the database handle: %w", err)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	locks := &locks{client: o.Redis, earlier: map[string]uint64{}, options: dedup.RedisLockOptions{
		LockTTL: cfg.LockTTL, DoneTTL: cfg.DoneTTL, OnError: cfg.LockOnError, Log: o.Logger,
	}}
	m, err := newMetrics(o.Registerer, locks)
	if err != nil {
		return nil, fmt.Errorf("consumer metrics: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	validator, _ := h.(Validator)
	amqp := rabbit.Config{URLs: o.AMQPURLs, Name: rabbit.ConnectionName("run")}
	c := &Consumer{
		cfg: cfg, keyFrom: keyFrom, amqp: amqp,
		topology: cfg.topology(),
		records:  o.Records, validator: validator, locks: locks, locker: dedup.NoLock{},
		effects:   &effects{db: o.DB, pool: pool, handler: h, timeout: cfg.HandlerTimeout, hook: cfg.Hook},
		publisher: rabbit.NewPublisher(amqp),
		warned:    map[string]bool{},
		metrics:   m, log: o.Logger, health: newHealth(o.Logger, m),
		brake:     newBrake(cfg.MaxDead, cfg.MaxDeadWindow, time.Now),
		claims:    newClaims(cfg.Lanes + 1),
		opTimeout: cfg.HandlerTimeout + 2*time.Second,
		name:      fmt.Sprintf("%.40s/%d/%d", host, os.Getpid(), time.Now().UnixNano()),
	}
	return c, nil
}

// Run consumes until ctx ends, then drains: it takes nothing new, finishes what is in hand and returns nil, or
// [ErrDrainTimeout] after DrainTimeout. Servers that are away are waited for, at the start as later. A schema that was
// never migrated is an error at the start. Run may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	if !c.ran.CompareAndSwap(false, true) {
		return errors.New("consumer: Run was called before; make a new Consumer")
	}
	work, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	defer kill(nil)
	done := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- c.sessions(ctx, work) })

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	c.health.drain()
	c.log.InfoContext(ctx, "draining", "timeout", c.cfg.DrainTimeout)
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

// killGrace is how long lanes have to notice that the drain is over.
const killGrace = 2 * time.Second

// State says what the engine is doing.
func (c *Consumer) State() State {
	s := c.health.state()
	if err := c.locks.down(); err != nil && !c.health.names(DependencyRedis) {
		s.Paused = append(s.Paused, DependencyRedis+": "+err.Error())
	}
	return s
}

func (c *Consumer) at(p Point) {
	if c.cfg.Hook != nil {
		c.cfg.Hook(p)
	}
}

// claims lets many ordinary claims of this process run at once, or one that takes over an expired lease.
type claims struct {
	all int64
	sem *semaphore.Weighted
}

func newClaims(lanes int) *claims {
	return &claims{int64(lanes), semaphore.NewWeighted(int64(lanes))}
}

// enter waits for its turn; leave ends it.
func (c *claims) enter(ctx context.Context, alone bool) (leave func(), err error) {
	weight := int64(1)
	if alone {
		weight = c.all
	}
	if err := c.sem.Acquire(ctx, weight); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { c.sem.Release(weight) }, nil
}

// debts are claims whose attempt never ran to an end. They are un-claimed before anything new is consumed, so that no
// dependency's failure counts as an attempt.
type debts struct {
	mu   sync.Mutex
	owed []dedup.Claim // guarded by mu
}

func (d *debts) owe(c dedup.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = append(d.owed, c)
}

// pay un-claims what is owed. A claim that somebody else has taken over is paid.
func (d *debts) pay(ctx context.Context, records *dedup.Log) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.owed) > 0 {
		if err := records.Unclaim(ctx, d.owed[0]); err != nil && !errors.Is(err, dedup.ErrLost) {
			return err
		}
		d.owed = d.owed[1:]
	}
	return nil
}
