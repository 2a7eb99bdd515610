package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // whose pages are those of http.DefaultServeMux, which nobody else uses
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/store"
	"github.com/rollbackd/rollbackd/internal/tracing"
)

// programName is how the commands are called that pages name.
const programName = "rollbackd"

// Daemon is one `rollbackd run`. Make it with [New], run it once.
type Daemon struct {
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumer  // nil: the relay works alone
	relay    *store.Relay        // of the outbox; nil: none
	webhook  *deadletter.Webhook // nil: none
	site     *admin.Site         // nil without HTTP address, and so is desk
	desk     *operator.Operator
	closers  []func() error    // of what was opened beside the engine
	spans    *tracing.Provider // nil: none
	check    handler.Check     // of the handler, before anything is consumed; nil: none
	// unchecked is why a check before the first message cannot be made yet, nil when it can.
	unchecked    atomic.Pointer[string]
	ignoreOldLog bool
}

// Options are what a Daemon is told beside the settings.
type Options struct {
	Version, Revision string // of what the process was built from, for whoever looks at a fleet
	// IgnoreOldLog starts also when the log of an old consumer was not taken over to its end: see [ErrOldLog].
	IgnoreOldLog bool
	// Handler is for tests, in the place of the one that the settings name.
	Handler consumer.Handler
	// Hook is for tests, called after each durable step; see [consumer.Config].
	Hook func(consumer.Point)
}

// New joins a daemon from cfg and binds its HTTP address. It asks no other server yet, so it succeeds while they are
// away.
func New(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) (d *Daemon, err error) {
	d, fresh := prepared(ctx, cfg, log, o)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if o.Handler == nil {
		o.Handler, d.check, err = handler.Open(ctx, handler.Options{
			Config: d.cfg, Fresh: fresh, Logger: log,
			Registry: prometheus.WrapRegistererWith(prometheus.Labels{"queue": d.cfg.Queue}, d.registry),
		})
		if err != nil {
			return d, err
		}
	}
	engine := d.cfg.Config
	engine.Hook, engine.Registerer, engine.Logger = o.Hook, d.registry, log
	if d.spans, err = tracing.Open(ctx, o.Version, log); err != nil {
		return d, err
	}
	if d.spans != nil {
		engine.TracerProvider = d.spans
	}
	if cfg.DeadLetterWebhook != "" {
		secrets := fresh("DEAD_LETTER_WEBHOOK_SECRET")
		d.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: cfg.DeadLetterWebhook, Secrets: func() []string { return config.Lines(secrets()) },
			TracerProvider: engine.TracerProvider,
		})
		if err != nil {
			return d, err
		}
		engine.Notifier = d.webhook
	}
	if d.engine, err = consumer.Open(ctx, engine, o.Handler); err != nil {
		return d, err
	}
	if cfg.Outbox {
		if d.relay, err = store.OpenRelay(ctx, d.cfg, 0, log, d.registry); err != nil {
			return d, err
		}
	}
	if cfg.HTTPAddr == "" {
		return d, nil
	}
	return d, d.openSite(ctx, d.siteOptions(fresh, o.Version))
}

// NewRelay joins a daemon that is the relay of the outbox alone: `rollbackd relay`.
func NewRelay(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) (d *Daemon, err error) {
	d, fresh := prepared(ctx, cfg, log, o)
	d.relay, err = store.OpenRelay(ctx, d.cfg, cfg.Retention(), log, d.registry)
	if err != nil || cfg.HTTPAddr == "" {
		return d, err
	}
	site := d.siteOptions(fresh, o.Version)
	site.Bare = true
	if d.site, err = admin.Open(ctx, site); err != nil {
		err = errors.Join(err, d.close())
	}
	return d, err
}

// prepared has what every daemon has: metrics of the process, and secrets that are read again.
func prepared(
	ctx context.Context, cfg config.Config, log *slog.Logger, o Options,
) (d *Daemon, fresh func(key string) func() string) {
	d = &Daemon{cfg: cfg, log: log, registry: prometheus.NewRegistry(), ignoreOldLog: o.IgnoreOldLog}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_build_info", Help: "1, with what the process was built from.",
			ConstLabels: prometheus.Labels{"version": o.Version, "revision": o.Revision, "goversion": runtime.Version()},
		}, func() float64 { return 1 }))
	warn := func(w config.Warning) { log.WarnContext(ctx, w.String()) }
	fresh = func(key string) func() string { return cfg.Fresh(key, warn) }
	d.cfg.Config.Fresh = consumer.Fresh{
		MySQLDSN: fresh("MYSQL_DSN"), RedisURL: fresh("REDIS_URL"), AMQPURLs: cfg.FreshAMQPURLs(warn),
	}
	return d, fresh
}

// openSite makes what persons and programs look and act with, on pools of its own, so that what they do takes no
// connection from a lane. It asks no server yet.
func (d *Daemon) openSite(ctx context.Context, o admin.Options) error {
	cfg := d.cfg
	acts, err := d.open(ctx, "desk", operator.Pool())
	if err != nil {
		return err
	}
	d.desk, err = operator.New(operator.Options{
		Lookup: acts.Lookup, Letters: acts.Letters, Queue: cfg.Queue, Retention: cfg.Retention(), Logger: d.log,
		Drain: cfg.DrainTimeout,
	})
	if err != nil {
		return err
	}
	looks, err := d.open(ctx, "pages", admin.Pool()) // the engine has said what the DSN is warned of
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	o.View.Lookup, o.View.Letters, o.View.Desk, o.View.Elects = looks.Lookup, looks.Letters, d.desk, true
	o.View.Names = operator.Names{Queue: cfg.Queue, MaxAttempts: cfg.MaxAttempts, Program: programName}
	o.View.Hide.Bodies, o.View.Hide.Pointers = cfg.UIHideBodies, cfg.UIRedact
	if o.View.Lock, err = looks.LockWords(ctx); err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	d.site, err = admin.Open(ctx, o)
	return err
}

// siteOptions are what every daemon answers with, and to whom.
func (d *Daemon) siteOptions(fresh func(key string) func() string, version string) admin.Options {
	cfg := d.cfg
	o := admin.Options{Addr: cfg.HTTPAddr, Version: version, Metrics: d.registry, Debug: http.DefaultServeMux}
	o.Guard.Token, o.Guard.TokensFile, o.Guard.Proxy = fresh("ADMIN_TOKEN"), cfg.AdminTokensFile,
		admin.Proxy(cfg.AdminProxy)
	o.Guard.BasePath = cfg.BasePath
	o.View.Health, o.View.Logger = d.health, d.log
	return o
}

// open opens the log beside the engine's own, until the daemon ends.
func (d *Daemon) open(ctx context.Context, name string, o store.Options) (*store.Store, error) {
	s, err := store.Open(ctx, d.cfg, name, o)
	if err == nil {
		d.closers = append(d.closers, s.Close)
	}
	return s, err
}

// Addr is the bound HTTP address, empty when there is none.
func (d *Daemon) Addr() string {
	if d.site == nil {
		return ""
	}
	return d.site.Addr()
}

// Metrics are what /metrics shows.
func (d *Daemon) Metrics() prometheus.Gatherer { return d.registry }

// Run consumes until ctx ends and drains then; see [consumer.Consumer.Run] for its errors. The pages answer until the
// engine has stopped, so that /readyz says "draining".
func (d *Daemon) Run(ctx context.Context) error {
	answering, stopPages := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPages()
	served := make(chan error, 1)
	var wg sync.WaitGroup
	if d.site != nil {
		d.log.InfoContext(ctx, "listening", "addr", d.site.Addr())
		wg.Go(func() { served <- d.site.Serve(answering) })
	} else {
		served <- nil
	}
	working, stopWork := context.WithCancel(ctx)
	defer stopWork()
	if d.desk != nil {
		wg.Go(func() { d.desk.Work(working) })
	}
	relayed := make(chan error, 1)
	if d.relay != nil {
		wg.Go(func() {
			defer stopWork() // when it cannot work at all, nobody else goes on
			relayed <- d.relay.Run(working)
		})
	} else {
		relayed <- nil
	}
	var err error
	if d.engine == nil {
		<-working.Done()
	} else if err = errors.Join(d.checkHandler(working), d.checkOldLogs(working)); err == nil && working.Err() == nil {
		err = d.engine.Run(working) // intake, work, copies, acks, connections, pools
	}
	stopWork()
	err = errors.Join(err, <-relayed)
	stopPages()
	wg.Wait()
	return errors.Join(err, <-served, d.close())
}

// checkHandler asks whether the handler can work, before any message meets it. A stop meanwhile is none of its errors.
func (d *Daemon) checkHandler(ctx context.Context) error {
	if d.check == nil {
		return nil
	}
	defer d.unchecked.Store(nil)
	if err := d.check(ctx, d.waitsForMySQL); ctx.Err() == nil {
		return err
	}
	return nil
}

func (d *Daemon) waitsForMySQL(err error) {
	why := consumer.DependencyMySQL + ": " + err.Error()
	d.unchecked.Store(&why)
}

// close ends what is not the engine's. An engine that never ran is closed too.
func (d *Daemon) close() error {
	if d.webhook != nil {
		d.webhook.Close()
	}
	var errs []error
	for _, end := range slices.Backward(d.closers) {
		errs = append(errs, end())
	}
	d.closers = nil
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	if d.relay != nil {
		errs = append(errs, d.relay.Close())
	}
	return errors.Join(append(errs, d.spans.Close())...)
}

// A lane that stands still for so many handler timeouts, and at least for so long, counts as stuck. Whatever it asks of
// a server has an end before that, also with the shortest timeouts; while it waits between two such questions it is not
// counted. So a server that is away does not get the process restarted, and a stuck lane does, whatever else is away.
const (
	stuckAfter = 3
	stuckLeast = 30 * time.Second
)

func (d *Daemon) health() admin.Readiness {
	var missed []string
	if d.relay != nil {
		r := d.relay.State()
		if d.engine == nil {
			return admin.Readiness{
				Group: d.cfg.Group, Queue: d.cfg.Queue, Consuming: r.Working, Draining: r.Draining, Waiting: r.Misses,
			}
		}
		for _, miss := range r.Misses {
			missed = append(missed, "outbox: "+miss)
		}
	}
	s := d.engine.State()
	s.Degraded = slices.Sorted(slices.Values(append(missed, s.Degraded...)))
	if why := d.unchecked.Load(); why != nil {
		s.Paused = append(s.Paused, *why)
	}
	return admin.Readiness{
		Group: d.cfg.Group, Queue: d.cfg.Queue,
		Consuming: s.Consuming, Draining: s.Draining, Waiting: s.Paused, Degraded: s.Degraded,
		Stuck: stuck(s.Still, d.cfg.HandlerTimeout),
	}
}

// stuck is why the process should be restarted; empty while it need not be.
func stuck(still, handlerTimeout time.Duration) string {
	limit := max(stuckAfter*handlerTimeout, stuckLeast)
	if still <= limit {
		return ""
	}
	return fmt.Sprintf("a lane, or a call of the handler, has not moved for %v, over %v (%d × ROLLBACKD_HANDLER_TIMEOUT, "+
		"at least %v)", still.Round(time.Second), limit, stuckAfter, stuckLeast)
}
