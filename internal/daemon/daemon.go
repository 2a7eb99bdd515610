package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Daemon is one `consumer run`. Make it with [New], run it once.
type Daemon struct {
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumer
	gauges   *gauges
	keeper   *keeper
	closers  []io.Closer // in the order in which they were opened
	admin    *admin.Server
}

// Option changes a Daemon for tests.
type Option func(*options)

type options struct {
	handler consumer.Handler
	hook    func(consumer.Point)
}

// WithHandler replaces the handler that the settings name.
func WithHandler(h consumer.Handler) Option { return func(o *options) { o.handler = h } }

// WithHook is called after each durable step; see [consumer.Config].
func WithHook(hook func(consumer.Point)) Option { return func(o *options) { o.hook = hook } }

// New joins a daemon from cfg and binds its HTTP address. It asks no other server yet, so it succeeds while they are away.
func New(ctx context.Context, cfg config.Config, log *slog.Logger, opts ...Option) (d *Daemon, err error) {
	d = &Daemon{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o := options{handler: newStockHandler(cfg.EmptyRollback)}
	for _, opt := range opts {
		opt(&o)
	}
	db, warnings, err := dedup.Open(ctx, cfg.MySQLDSN, dedup.OpenOptions{
		Program: rabbit.ConnectionName("run"), MaxOpen: 2*cfg.Lanes + 4, LockWait: lockWait(cfg),
		ReadTimeout: statementTimeout(cfg), WriteTimeout: statementTimeout(cfg),
	})
	if err != nil {
		return d, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	for _, w := range warnings {
		log.WarnContext(ctx, "ROLLBACKD_MYSQL_DSN: "+w)
	}
	pool, err := db.DB()
	if err != nil {
		return d, fmt.Errorf("database handle: %w", err)
	}
	d.closers = append(d.closers, pool)
	lock, err := d.openRedis()
	if err != nil {
		return d, err
	}
	records, err := dedup.NewLog(db, logOptions(cfg))
	if err != nil {
		return d, err
	}
	if d.gauges, err = newGauges(records, d.registry, log); err != nil {
		return d, fmt.Errorf("metrics: %w", err)
	}
	if d.keeper, err = d.newKeeper(ctx); err != nil {
		return d, err
	}
	engine := engineConfig(cfg)
	engine.Hook = o.hook
	d.engine, err = consumer.New(engine, o.handler, consumer.Options{
		AMQPURLs: cfg.AMQPURLs, DB: db, Records: records, Redis: lock, Registerer: d.registry, Logger: log,
	})
	if err != nil {
		return d, err
	}
	for _, name := range unusedSettings(cfg) {
		log.WarnContext(ctx, name+" is set, but nothing acts on it in this version")
	}
	if cfg.HTTPAddr == "" {
		return d, nil
	}
	d.admin, err = admin.Listen(ctx, cfg.HTTPAddr, d.health, d.registry, log)
	return d, err
}

// notYet are the settings that are checked, but that `run` does not act on in this version.
var notYet = []string{"ADMIN_TOKEN"}

// unusedSettings names those of notYet that somebody has set.
func unusedSettings(cfg config.Config) (names []string) {
	for _, s := range cfg.Settings() {
		if s.Source != config.FromDefault && slices.Contains(notYet, strings.TrimPrefix(s.Name, "ROLLBACKD_")) {
			names = append(names, s.Name)
		}
	}
	return names
}

func (d *Daemon) openRedis() (redis.UniversalClient, error) {
	if d.cfg.RedisURL == "" {
		return nil, nil
	}
	client, err := dedup.OpenRedis(d.cfg.RedisURL, dedup.RedisOptions{Name: rabbit.ConnectionName("run"), Connections: d.cfg.Lanes + 4})
	if err != nil {
		return nil, fmt.Errorf("ROLLBACKD_REDIS_URL: %w", err)
	}
	d.closers = append(d.closers, client)
	return client, nil
}

// lockWait bounds a wait for another transaction's lock, so that it ends before the handler's time does.
func lockWait(cfg config.Config) time.Duration {
	return max(time.Second, (cfg.HandlerTimeout / 2).Truncate(time.Second))
}

// statementTimeout is how long a statement's answer is waited for.
func statementTimeout(cfg config.Config) time.Duration {
	return max(cfg.HandlerTimeout, lockWait(cfg)+time.Second)
}

func logOptions(cfg config.Config) dedup.LogOptions {
	return dedup.LogOptions{Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts}
}

func engineConfig(cfg config.Config) consumer.Config {
	return consumer.Config{
		Group: cfg.Group, Exchange: cfg.Exchange, Queue: cfg.Queue, RoutingKeys: cfg.RoutingKeys, KeyFrom: cfg.KeyFrom,
		MaxAttempts: cfg.MaxAttempts, RetryDelays: cfg.RetryDelays,
		Lanes: cfg.Lanes, BatchSize: cfg.BatchSize, BatchLinger: cfg.BatchLinger, Prefetch: cfg.Prefetch,
		Lease: cfg.Lease, HandlerTimeout: cfg.HandlerTimeout, DrainTimeout: cfg.DrainTimeout,
		LockTTL: cfg.LockTTL, DoneTTL: cfg.DoneTTL, LockOnError: dedup.LockPolicy(cfg.LockOnError),
		MaxDead: cfg.MaxDeadRate.Count, MaxDeadWindow: cfg.MaxDeadRate.Per, BrakePause: cfg.BrakePause,
	}
}

// Addr is the bound HTTP address, empty when there is none.
func (d *Daemon) Addr() string {
	if d.admin == nil {
		return ""
	}
	return d.admin.Addr()
}

// Metrics are what /metrics shows.
func (d *Daemon) Metrics() prometheus.Gatherer { return d.registry }

// Run consumes until ctx ends and drains then; see [consumer.Consumer.Run] for its errors. The pages answer until the
// engine has stopped, so that /readyz says "draining".
func (d *Daemon) Run(ctx context.Context) error {
	pages, stopPages := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPages()
	served := make(chan error, 1)
	var wg sync.WaitGroup
	if d.admin != nil {
		d.log.InfoContext(ctx, "listening", "addr", d.admin.Addr())
		wg.Go(func() { served <- d.admin.Serve(pages) })
	} else {
		served <- nil
	}
	wg.Go(func() { d.gauges.run(pages) })
	keeping, stopKeeper := context.WithCancel(ctx)
	defer stopKeeper()
	wg.Go(func() { d.keeper.run(keeping) })
	err := d.engine.Run(ctx)
	// 1 keeper, while the engine drains  2 engine (intake, work, copies, acks, publisher, consumer connection)
	// 3 pages and gauges  4 pools
	stopKeeper()
	stopPages()
	wg.Wait()
	return errors.Join(err, <-served, d.close())
}

// close closes the pools, the last first.
func (d *Daemon) close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i].Close())
	}
	d.closers = nil
	return errors.Join(errs...)
}

// stuckAfter is how many handler timeouts a lane may stand still before the process counts as stuck.
const stuckAfter = 3

func (d *Daemon) health() admin.Health {
	s := d.engine.State()
	h := admin.Health{Consuming: s.Consuming, Draining: s.Draining, Waiting: s.Paused}
	if limit := stuckAfter * d.cfg.HandlerTimeout; s.Still > limit && len(s.Paused) == 0 {
		h.Stuck = fmt.Sprintf("a lane has not moved for %v, over %d × ROLLBACKD_HANDLER_TIMEOUT", s.Still.Round(time.Second), stuckAfter)
	}
	return h
}
