package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // whose pages are those of http.DefaultServeMux, which nobody else uses
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/site"
	"github.com/rollbackd/rollbackd/internal/store"
	"github.com/rollbackd/rollbackd/internal/telemetry"
)

// Daemon is one `rollbackd run`, `serve` or `relay`. Make it with [New], run it once.
type Daemon struct {
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumers // a member for each of cfg.All; nil: the relay works alone, or nobody
	relay    *store.Relay        // of the outbox; nil: none
	webhook  *deadletter.Webhook // nil: none
	site     *site.Site          // nil without HTTP address
	exports  *telemetry.Provider // of spans and metrics; nil: not made yet
	checks   []handler.Check     // of handlers, before anything is consumed
	// unchecked is why a check before the first message cannot be made yet, nil when it can.
	unchecked    atomic.Pointer[string]
	ignoreOldLog bool
}

// Options are what a Daemon is told beside the settings.
type Options struct {
	Version, Revision string // of what the process was built from, for whoever looks at a fleet
	// PagesOnly consumes nothing, holds no election and publishes no outbox: `rollbackd serve`.
	PagesOnly bool
	// RelayOnly publishes the outbox and nothing else: `rollbackd relay`.
	RelayOnly bool
	// IgnoreOldLog starts also when the log of an old consumer was not taken over to its end: see [ErrOldLog].
	IgnoreOldLog bool
	// Expected names the messages that should have come, for pages and API.
	Expected operator.Query
	// Handler is for tests, in the place of the one that the settings name.
	Handler consumer.Handler
	// Hook is for tests, called after each durable step; see [consumer.Config].
	Hook func(consumer.Point)
}

// New joins a daemon from cfg and binds its HTTP address. It asks no other server yet, so it succeeds while they are
// away.
func New(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) (d *Daemon, err error) {
	d = prepared(ctx, cfg, log, o)
	d.exports, err = telemetry.Open(ctx, o.Version, d.registry, log)
	switch {
	case err != nil || o.PagesOnly:
	case o.RelayOnly:
		d.relay, err = store.OpenRelay(ctx, d.cfg.Config, log, d.registry)
	default:
		err = d.openEngine(ctx, o)
	}
	if err == nil {
		err = d.openSite(ctx, o)
	}
	if err != nil {
		err = errors.Join(err, d.close())
	}
	return d, err
}

// openEngine makes what consumes, and what publishes the outbox beside it.
func (d *Daemon) openEngine(ctx context.Context, o Options) (err error) {
	cfg, log := d.cfg, d.log
	spans := d.exports.Spans
	if cfg.DeadLetterWebhook != "" {
		secrets := cfg.Fresh("DEAD_LETTER_WEBHOOK_SECRET", d.warn(ctx))
		d.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: cfg.DeadLetterWebhook, Secrets: func() []string { return config.Lines(secrets()) }, TracerProvider: spans,
		})
		if err != nil {
			return err
		}
	}
	var members []consumer.Member
	for _, queue := range d.cfg.All() {
		m := consumer.Member{Config: queue.Config, Handler: o.Handler}
		m.Fresh, m.Hook, m.Registerer, m.Logger, m.TracerProvider = d.cfg.Config.Fresh, o.Hook, d.registry, log, spans
		if d.webhook != nil {
			m.Notifier = d.webhook
		}
		if m.Handler == nil {
			if m.Handler, err = d.handler(ctx, queue); err != nil {
				return err
			}
		}
		members = append(members, m)
	}
	d.engine, err = consumer.OpenAll(ctx, members...)
	return err
}

// handler makes that of a queue, and keeps its check.
func (d *Daemon) handler(ctx context.Context, queue config.Config) (consumer.Handler, error) {
	queue.Config.Fresh = d.cfg.Config.Fresh
	h, check, err := handler.Open(ctx, handler.Options{
		Config: queue, Fresh: func(key string) func() string { return queue.Fresh(key, d.warn(ctx)) }, Logger: d.log,
		Registry: prometheus.WrapRegistererWith(prometheus.Labels{"queue": queue.Queue}, d.registry),
	})
	if check != nil {
		d.checks = append(d.checks, check)
	}
	return h, err
}

// warn logs what is amiss with a setting that is read again.
func (d *Daemon) warn(ctx context.Context) func(config.Warning) {
	return func(w config.Warning) { d.log.WarnContext(ctx, w.String()) }
}

// prepared has what every daemon has: metrics of the process, and secrets that are read again.
func prepared(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) *Daemon {
	d := &Daemon{cfg: cfg, log: log, registry: prometheus.NewRegistry(), ignoreOldLog: o.IgnoreOldLog}
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_build_info", Help: "1, with what the process was built from.",
			ConstLabels: prometheus.Labels{"version": o.Version, "revision": o.Revision, "goversion": runtime.Version()},
		}, func() float64 { return 1 }))
	for file, end := range cfg.CertificateEnds() {
		d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_certificate_end_seconds", Help: "Unix time at which the first certificate of a PEM file ends, " +
				"as the file is now; NaN while it holds none.",
			ConstLabels: prometheus.Labels{"file": file},
		}, end))
	}
	warn := d.warn(ctx)
	d.cfg.Config.Fresh = consumer.Fresh{
		MySQLDSN: cfg.Fresh("MYSQL_DSN", warn), RedisURL: cfg.Fresh("REDIS_URL", warn), AMQPURLs: cfg.FreshAMQPURLs(warn),
	}
	return d
}

// openSite makes what answers over HTTP, if there is an address for it; that of a relay has neither pages nor API.
func (d *Daemon) openSite(ctx context.Context, said Options) error {
	cfg := d.cfg
	if cfg.HTTPAddr == "" {
		return nil
	}
	o := site.Options{Expected: said.Expected}
	o.Addr, o.Version, o.Metrics, o.Debug, o.Bare = cfg.HTTPAddr, said.Version, d.registry, http.DefaultServeMux,
		said.RelayOnly
	o.Guard.Token, o.Guard.TokensFile, o.Guard.Proxy = cfg.Fresh("ADMIN_TOKEN", d.warn(ctx)), cfg.AdminTokensFile,
		site.Proxy(cfg.AdminProxy)
	o.Guard.BasePath = cfg.BasePath
	o.View.Health, o.View.Logger = d.health, d.log
	o.View.Hide.Bodies, o.View.Hide.Pointers = cfg.UIHideBodies, cfg.UIRedact
	for _, queue := range cfg.All() {
		o.Queues = append(o.Queues, store.Queue{Config: queue.Config, OrderOf: handler.OrderOf(queue.Handler)})
	}
	if d.engine != nil {
		o.Members = d.engine.Members()
	}
	opened, err := site.Open(ctx, o)
	if err == nil {
		d.site = opened
	}
	return err
}

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
	if d.site != nil {
		wg.Go(func() { d.site.Work(working) })
	}
	var err error
	switch {
	case d.relay != nil:
		err = d.relay.Run(working)
	case d.engine == nil:
		<-working.Done()
	default:
		if err = errors.Join(d.checkHandlers(working), d.checkOldLogs(working)); err == nil && working.Err() == nil {
			err = d.engine.Run(working) // intake, work, copies, acks, connections, pools
		}
	}
	stopWork()
	stopPages()
	wg.Wait()
	return errors.Join(err, <-served, d.close())
}

// checkHandlers asks whether each handler can work, before any message meets it. A stop meanwhile is none of their
// errors.
func (d *Daemon) checkHandlers(ctx context.Context) error {
	defer d.unchecked.Store(nil)
	for _, check := range d.checks {
		if err := check(ctx, d.waitsForMySQL); err != nil && ctx.Err() == nil {
			return err
		}
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
	if d.site != nil {
		errs = append(errs, d.site.Close())
	}
	if d.engine != nil {
		errs = append(errs, d.engine.Close())
	}
	if d.relay != nil {
		errs = append(errs, d.relay.Close())
	}
	return errors.Join(append(errs, d.exports.Close())...)
}

func (d *Daemon) health() site.Readiness {
	if d.engine == nil && d.relay == nil {
		return site.Readiness{Group: d.cfg.Group, Queue: d.cfg.Queue, PagesOnly: true}
	}
	if d.relay != nil {
		r := d.relay.State()
		return site.Readiness{
			Group: d.cfg.Group, Queue: d.cfg.Queue, Consuming: r.Working, Draining: r.Draining, Waiting: r.Misses,
		}
	}
	r := site.ReadinessOf(d.engine.Members())
	if why := d.unchecked.Load(); why != nil {
		r.Waiting = append(r.Waiting, *why)
	}
	slices.Sort(r.Waiting)
	return r
}
