package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/config"
	httphandler "github.com/rollbackd/rollbackd/internal/handler/http"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/stock"
)

// Daemon is one `consumer run`. Make it with [New], run it once.
type Daemon struct {
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumer
	webhook  *deadletter.Webhook // nil: none
	admin    *admin.Server       // nil: none
	// statements are handler sql's, to be checked before anything is consumed; nil for another handler.
	statements *sqlhandler.File
	logins     consumer.Fresh
	// unchecked is why they are not checked yet, nil when they are.
	unchecked atomic.Pointer[string]
}

// fresh are the secrets as they are now, to be asked for before a connection.
type fresh struct {
	logins         consumer.Fresh
	webhookSecrets func() []string
}

func newFresh(ctx context.Context, cfg config.Config, log *slog.Logger) fresh {
	of := func(key string) func() string {
		return cfg.Fresh(key, func(w config.Warning) { log.WarnContext(ctx, w.String()) })
	}
	urls, secrets := of("AMQP_URL"), of("DEAD_LETTER_WEBHOOK_SECRET")
	return fresh{
		logins: consumer.Fresh{
			MySQLDSN: of("MYSQL_DSN"), RedisURL: of("REDIS_URL"),
			AMQPURLs: func() []string { return config.SplitURLs(urls()) },
		},
		webhookSecrets: func() []string { return config.Lines(secrets()) },
	}
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

// New joins a daemon from cfg and binds its HTTP address. It asks no other server yet, so it succeeds while they are
// away.
func New(ctx context.Context, cfg config.Config, log *slog.Logger, opts ...Option) (d *Daemon, err error) {
	d = &Daemon{cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	if o.handler == nil {
		if o.handler, d.statements, err = handlerOf(ctx, cfg, log); err != nil {
			return d, err
		}
	}
	fresh := newFresh(ctx, cfg, log)
	d.logins = fresh.logins
	engine := cfg.Config
	engine.Fresh, engine.Hook = fresh.logins, o.hook
	engine.Registerer, engine.Logger = d.registry, log
	if cfg.DeadLetterWebhook != "" {
		d.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: cfg.DeadLetterWebhook, Secrets: fresh.webhookSecrets,
		})
		if err != nil {
			return d, err
		}
		engine.Notifier = d.webhook
	}
	if d.engine, err = consumer.Open(ctx, engine, o.handler); err != nil {
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

// unusedSettings names those of notYet that somebody has set to something.
func unusedSettings(cfg config.Config) (names []string) {
	for _, s := range cfg.Settings() {
		if s.Source != config.FromDefault && s.Value != "" &&
			slices.Contains(notYet, strings.TrimPrefix(s.Name, "ROLLBACKD_")) {
			names = append(names, s.Name)
		}
	}
	return names
}

// handlerOf is the handler that the settings name, and its statements if it has any.
func handlerOf(ctx context.Context, cfg config.Config, log *slog.Logger) (consumer.Handler, *sqlhandler.File, error) {
	switch cfg.Handler {
	case config.HandlerHTTP:
		h, err := httphandler.New(httpOptions(ctx, cfg, log))
		return h, nil, err
	case config.HandlerSQL:
		file, err := sqlhandler.Load(cfg.SQLFile)
		if err != nil {
			return nil, nil, err
		}
		return sqlhandler.New(file), file, nil
	}
	empty := stock.Retry
	if cfg.EmptyRollback == config.EmptyRollbackRefuse {
		empty = stock.Refuse
	}
	return stockhandler.New(stock.Options{Empty: empty}), nil, nil
}

// httpOptions are what the settings say of the service that handler http calls.
func httpOptions(ctx context.Context, cfg config.Config, log *slog.Logger) httphandler.Options {
	fresh := func(key string) func() string {
		return cfg.Fresh(key, func(w config.Warning) { log.WarnContext(ctx, w.String()) })
	}
	token, secrets := fresh("HTTP_TOKEN"), fresh("HTTP_HMAC_SECRET")
	return httphandler.Options{
		Target: cfg.HTTPTarget, Timeout: cfg.HTTPTimeout, Concurrency: cfg.HTTPConcurrency,
		CAFile: cfg.HTTPTLSCAFile, CertFile: cfg.HTTPTLSCertFile, KeyFile: cfg.HTTPTLSKeyFile,
		Token: token, Secrets: func() []string { return config.Lines(secrets()) },
		Warn: func(err error) { log.WarnContext(ctx, "handler http", "err", err) },
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
	err := d.checkStatements(ctx)
	if err == nil && ctx.Err() == nil {
		err = d.engine.Run(ctx) // intake, work, copies, acks, connections, pools
	}
	stopPages()
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
		Options: mysqldb.Options{Program: rabbit.ConnectionName("check"), CurrentDSN: d.logins.MySQLDSN},
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
	if d.engine == nil {
		return nil
	}
	return d.engine.Close()
}

// A lane that stands still for so many handler timeouts, and at least for so long, counts as stuck. Whatever it asks of
// a server has an end before that, also with the shortest timeouts; while it waits between two such questions it is not
// counted. So a server that is away does not get the process restarted, and a stuck lane does, whatever else is away.
const (
	stuckAfter = 3
	stuckLeast = 30 * time.Second
)

func (d *Daemon) health() admin.Health {
	s := d.engine.State()
	if why := d.unchecked.Load(); why != nil {
		s.Paused = append(s.Paused, *why)
	}
	return admin.Health{
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
	return fmt.Sprintf("a lane has not moved for %v, over %v (%d × ROLLBACKD_HANDLER_TIMEOUT, at least %v)",
		still.Round(time.Second), limit, stuckAfter, stuckLeast)
}
