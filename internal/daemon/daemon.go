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
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/pages"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/tracing"
	"github.com/rollbackd/rollbackd/stock"
)

// Daemon is one `rollbackd run`. Make it with [New], run it once.
type Daemon struct {
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumer
	webhook  *deadletter.Webhook // nil: none
	admin    *admin.Server       // nil: none, and so are view, pages and api
	view     *view.View
	pages    *pages.Pages
	api      *api.API
	closers  []func() error     // of what was opened beside the engine
	desk     *operator.Operator // nil without HTTP address
	spans    *tracing.Provider  // nil: none
	// statements are handler sql's, to be checked before anything is consumed; nil for another handler.
	statements *sqlhandler.File
	// unchecked is why a check before the first message cannot be made yet, nil when it can.
	unchecked    atomic.Pointer[string]
	ignoreOldLog bool
}

// fresh are the secrets as they are now, to be asked for before a connection.
type fresh struct {
	cfg  config.Config
	warn func(config.Warning)
}

func (f fresh) text(key string) func() string { return f.cfg.Fresh(key, f.warn) }

func (f fresh) lines(key string) func() []string {
	text := f.text(key)
	return func() []string { return config.Lines(text()) }
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
	d = &Daemon{cfg: cfg, log: log, registry: prometheus.NewRegistry(), ignoreOldLog: o.IgnoreOldLog}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_build_info", Help: "1, with what the process was built from.",
			ConstLabels: prometheus.Labels{"version": o.Version, "revision": o.Revision, "goversion": runtime.Version()},
		}, func() float64 { return 1 }))
	warn := func(w config.Warning) { log.WarnContext(ctx, w.String()) }
	fresh := fresh{cfg, warn}
	d.cfg.Config.Fresh = consumer.Fresh{
		MySQLDSN: fresh.text("MYSQL_DSN"), RedisURL: fresh.text("REDIS_URL"), AMQPURLs: cfg.FreshAMQPURLs(warn),
	}
	if o.Handler == nil {
		if o.Handler, err = d.handler(ctx, fresh); err != nil {
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
		d.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: cfg.DeadLetterWebhook, Secrets: fresh.lines("DEAD_LETTER_WEBHOOK_SECRET"),
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
	if cfg.HTTPAddr == "" {
		return d, nil
	}
	if err := d.openOperator(ctx); err != nil {
		return d, err
	}
	guard, err := admin.NewGuard(admin.GuardOptions{
		Token: fresh.text("ADMIN_TOKEN"), TokensFile: cfg.AdminTokensFile, Proxy: admin.Proxy(cfg.AdminProxy),
		BasePath: cfg.BasePath, Refused: pages.NewRefusals(d.desk, log).Note, Metrics: d.registry, Logger: log,
	})
	if err != nil {
		return d, err
	}
	if err := d.openPages(ctx, guard, o.Version); err != nil {
		return d, err
	}
	d.admin, err = admin.Listen(ctx, admin.Options{
		Addr: cfg.HTTPAddr, Health: d.health, Metrics: d.registry, Guard: guard, Logger: log,
		Guarded: d.guarded(guard),
	})
	return d, err
}

// guarded are the handlers that answer to people only, by their paths below the base path.
func (d *Daemon) guarded(guard *admin.Guard) map[string]http.Handler {
	return map[string]http.Handler{
		"/":              d.pages, // which guard themselves, page by page
		api.Prefix:       d.api,   // which does so too
		api.Prefix + "/": d.api,
		"/debug/pprof/":  guard.Protect(admin.Act, http.DefaultServeMux),
	}
}

// handler is the one that the settings name.
func (d *Daemon) handler(ctx context.Context, fresh fresh) (_ consumer.Handler, err error) {
	cfg := d.cfg
	switch cfg.Handler {
	case config.HandlerHTTP:
		repeated := prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rollbackd_calls_repeated_total", Help: "Calls made once more, as a connection used before was dead.",
		})
		if err := d.registry.Register(repeated); err != nil {
			return nil, err
		}
		return httphandler.New(httphandler.Options{
			Target: cfg.HTTPTarget, Timeout: cfg.HTTPTimeout, Concurrency: cfg.HTTPConcurrency,
			CAFile: cfg.HTTPTLSCAFile, CertFile: cfg.HTTPTLSCertFile, KeyFile: cfg.HTTPTLSKeyFile,
			Token: fresh.text("HTTP_TOKEN"), Secrets: fresh.lines("HTTP_HMAC_SECRET"), Repeated: repeated.Inc,
			Warn: func(err error) { d.log.WarnContext(ctx, "handler http", "err", err) },
		})
	case config.HandlerSQL:
		if d.statements, err = sqlhandler.Load(cfg.SQLFile, cfg.OwnTables()); err != nil {
			return nil, err
		}
		return sqlhandler.New(d.statements), nil
	}
	empty := stock.Retry
	if cfg.EmptyRollback == config.EmptyRollbackRefuse {
		empty = stock.Refuse
	}
	return stockhandler.New(stock.Options{Empty: empty}), nil
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
	answering, stopPages := context.WithCancel(context.WithoutCancel(ctx))
	defer stopPages()
	served := make(chan error, 1)
	var wg sync.WaitGroup
	if d.admin != nil {
		d.log.InfoContext(ctx, "listening", "addr", d.admin.Addr())
		wg.Go(func() { served <- d.admin.Serve(answering) })
		wg.Go(func() { d.view.Run(answering) })
		stop := context.AfterFunc(answering, d.pages.End)
		defer stop()
	} else {
		served <- nil
	}
	working, stopWork := context.WithCancel(ctx)
	defer stopWork()
	if d.desk != nil {
		wg.Go(func() { d.desk.Work(working) })
	}
	err := errors.Join(d.checkStatements(ctx), d.checkOldLogs(ctx))
	if err == nil && ctx.Err() == nil {
		err = d.engine.Run(ctx) // intake, work, copies, acks, connections, pools
	}
	stopPages()
	stopWork()
	wg.Wait()
	return errors.Join(err, <-served, d.close())
}

// checkStatements asks the database about handler sql's statements, before any message meets them. While the database
// is away it waits; a stop meanwhile is none of its errors.
func (d *Daemon) checkStatements(ctx context.Context) error {
	if d.statements == nil {
		return nil
	}
	err := d.statements.Await(ctx, sqlhandler.Server{
		DSN: d.cfg.MySQLDSN, Logger: d.log,
		Options: mysqldb.Options{Program: rabbit.ConnectionName("check"), CurrentDSN: d.cfg.Config.Fresh.MySQLDSN},
		Waiting: func(err error) {
			why := consumer.DependencyMySQL + ": " + err.Error()
			d.unchecked.Store(&why)
		},
	})
	d.unchecked.Store(nil)
	if ctx.Err() != nil {
		return nil
	}
	return err
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
	s := d.engine.State()
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
