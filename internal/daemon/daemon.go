package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	_ "net/http/pprof" // whose pages are those of http.DefaultServeMux, which nobody else uses
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"

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
	engine   *consumer.Consumers  // a member for each of cfg.All; nil: the relay works alone
	relay    *store.Relay         // of the outbox; nil: none
	webhook  *deadletter.Webhook  // nil: none
	site     *admin.Site          // nil without HTTP address, and no desk then
	desks    []*operator.Operator // of each queue
	closers  []func() error       // of what was opened beside the engine
	spans    *tracing.Provider    // nil: none
	checks   []handler.Check      // of handlers, before anything is consumed
	// unchecked is why a check before the first message cannot be made yet, nil when it can.
	unchecked    atomic.Pointer[string]
	ignoreOldLog bool
}

// Options are what a Daemon is told beside the settings.
type Options struct {
	Version, Revision string // of what the process was built from, for whoever looks at a fleet
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
	d, fresh := prepared(ctx, cfg, log, o)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.spans, err = tracing.Open(ctx, o.Version, log); err != nil {
		return d, err
	}
	var spans trace.TracerProvider
	if d.spans != nil {
		spans = d.spans
	}
	if cfg.DeadLetterWebhook != "" {
		secrets := fresh("DEAD_LETTER_WEBHOOK_SECRET")
		d.webhook, err = deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: cfg.DeadLetterWebhook, Secrets: func() []string { return config.Lines(secrets()) }, TracerProvider: spans,
		})
		if err != nil {
			return d, err
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
				return d, err
			}
		}
		members = append(members, m)
	}
	if d.engine, err = consumer.OpenAll(ctx, members...); err != nil {
		return d, err
	}
	if cfg.HTTPAddr == "" {
		return d, nil
	}
	return d, d.openSite(ctx, d.siteOptions(fresh, o.Version), o.Expected)
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

// NewRelay joins a daemon that is the relay of the outbox alone: `rollbackd relay`.
func NewRelay(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) (d *Daemon, err error) {
	d, fresh := prepared(ctx, cfg, log, o)
	d.relay, err = store.OpenRelay(ctx, d.cfg, log, d.registry)
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
	warn := d.warn(ctx)
	fresh = func(key string) func() string { return cfg.Fresh(key, warn) }
	d.cfg.Config.Fresh = consumer.Fresh{
		MySQLDSN: fresh("MYSQL_DSN"), RedisURL: fresh("REDIS_URL"), AMQPURLs: cfg.FreshAMQPURLs(warn),
	}
	return d, fresh
}

// openSite makes what persons and programs look and act with, on pools of its own, so that what they do takes no
// connection from a lane. It asks no server yet.
func (d *Daemon) openSite(ctx context.Context, o admin.Options, expected operator.Query) error {
	cfg := d.cfg
	acts, err := d.open(ctx, "desk", operator.Pool())
	if err != nil {
		return err
	}
	for _, queue := range cfg.All() {
		of, err := acts.Of(queue)
		if err != nil {
			return err
		}
		desk, err := operator.New(operator.Options{
			Lookup: of.Lookup, Letters: of.Letters, Queue: queue.Queue, Retention: cfg.Retention(), Logger: d.log,
			Drain: cfg.DrainTimeout, Expected: expected,
		})
		if err != nil {
			return err
		}
		d.desks = append(d.desks, desk)
	}
	looks, err := d.open(ctx, "pages", admin.Pool()) // the engine has said what the DSN is warned of
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	o.View.Lookup, o.View.Letters, o.View.Desk, o.View.Elects = looks.Lookup, looks.Letters, d.desks[0], true
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
	for _, desk := range d.desks {
		wg.Go(func() { desk.Work(working) })
	}
	var err error
	if d.relay != nil {
		err = d.relay.Run(working)
	} else if err = errors.Join(d.checkHandlers(working), d.checkOldLogs(working)); err == nil && working.Err() == nil {
		err = d.engine.Run(working) // intake, work, copies, acks, connections, pools
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
	if d.relay != nil {
		r := d.relay.State()
		return admin.Readiness{
			Group: d.cfg.Group, Queue: d.cfg.Queue, Consuming: r.Working, Draining: r.Draining, Waiting: r.Misses,
		}
	}
	r := admin.Readiness{Group: d.cfg.Group, Queue: d.cfg.Queue, Consuming: true}
	members := d.engine.Members()
	for i, queue := range d.cfg.All() {
		s := members[i].State()
		if len(members) > 1 {
			s = named(s, queue.Queue)
			r.Queues = append(r.Queues, admin.QueueReadiness{
				Group: queue.Group, Queue: queue.Queue, Ready: s.Consuming && !s.Draining && len(s.Paused) == 0,
			})
		}
		r.Consuming, r.Draining = r.Consuming && s.Consuming, r.Draining || s.Draining
		r.Waiting, r.Degraded = append(r.Waiting, s.Paused...), append(r.Degraded, s.Degraded...)
		r.Stuck = cmp.Or(r.Stuck, stuck(s.Still, queue.HandlerTimeout))
	}
	if why := d.unchecked.Load(); why != nil {
		r.Waiting = append(r.Waiting, *why)
	}
	slices.Sort(r.Waiting)
	slices.Sort(r.Degraded)
	return r
}

// named says of what is amiss with one of several queues of which. What is said of a queue begins with its name, and
// the outbox is that of all.
func named(s consumer.State, queue string) consumer.State {
	for _, all := range [][]string{s.Paused, s.Degraded} {
		for i, text := range all {
			if what, why, _ := strings.Cut(text, ": "); what != "outbox" && !strings.HasPrefix(what, queue) {
				all[i] = what + " of " + queue + ": " + why
			}
		}
	}
	return s
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
