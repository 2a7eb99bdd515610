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
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/legacyimport"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/site"
	"github.com/rollbackd/rollbackd/internal/store"
	"github.com/rollbackd/rollbackd/internal/telemetry"
)

// Daemon is one `rollbackd run`, `serve` or `relay`. Make it with [New], run it once.
type Daemon struct {
	o        Options
	cfg      config.Config
	log      *slog.Logger
	registry *prometheus.Registry
	engine   *consumer.Consumers // a member for each of cfg.All; nil: the relay works alone, or nobody
	relay    *store.Relay        // of the outbox; nil: none
	site     *site.Site          // nil without HTTP address
	exports  *telemetry.Provider // of spans and metrics
	closers  []func() error      // of what New has opened
	checks   []handler.Check     // before anything is consumed
	// unchecked is why a check before the first message cannot be made yet, nil when it can.
	unchecked atomic.Pointer[string]
	warn      func(config.Warning) // logs what is amiss with a setting that is read again
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
}

// New joins a daemon from cfg and binds its HTTP address. It asks no other server yet, so it succeeds while they are
// away.
func New(ctx context.Context, cfg config.Config, log *slog.Logger, o Options) (*Daemon, error) {
	d := &Daemon{o: o, cfg: cfg, log: log, registry: prometheus.NewRegistry()}
	d.warn = func(w config.Warning) { log.WarnContext(ctx, w.String()) }
	d.cfg.Config.Fresh = consumer.Fresh{
		MySQLDSN: cfg.Fresh("MYSQL_DSN", d.warn), RedisURL: cfg.Fresh("REDIS_URL", d.warn),
		AMQPURLs: cfg.FreshAMQPURLs(d.warn),
	}
	d.measure()
	var err error
	if d.exports, err = telemetry.Open(ctx, o.Version, d.registry, log); err == nil {
		d.closers = append(d.closers, d.exports.Close)
		err = d.open(ctx)
	}
	if err != nil {
		err = errors.Join(err, d.close())
	}
	return d, err
}

// measure has the metrics of the process.
func (d *Daemon) measure() {
	d.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_build_info", Help: "1, with what the process was built from.",
			ConstLabels: prometheus.Labels{"version": d.o.Version, "revision": d.o.Revision, "goversion": runtime.Version()},
		}, func() float64 { return 1 }))
	for file, end := range d.cfg.CertificateEnds() {
		d.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_certificate_end_seconds", Help: "Unix time at which the first certificate of a PEM file ends, " +
				"as the file is now; NaN while it holds none.",
			ConstLabels: prometheus.Labels{"file": file},
		}, end))
	}
}

// queues are the settings of each queue, with the secrets as they are now.
func (d *Daemon) queues() []config.Config {
	all := d.cfg.All()
	for i := range all {
		all[i].Config.Fresh = d.cfg.Config.Fresh
	}
	return all
}

// open makes what works, and what answers over HTTP if there is an address for it.
func (d *Daemon) open(ctx context.Context) (err error) {
	switch {
	case d.o.PagesOnly:
	case d.o.RelayOnly:
		if d.relay, err = store.OpenRelay(ctx, d.cfg.Config, d.log, d.registry); err == nil {
			d.closers = append(d.closers, d.relay.Close)
		}
	default:
		err = d.openEngine(ctx)
	}
	if err != nil || d.cfg.HTTPAddr == "" {
		return err
	}
	opened, err := site.Open(ctx, d.answers())
	if err == nil {
		d.site, d.closers = opened, append(d.closers, opened.Close)
	}
	return err
}

// openEngine makes what consumes, and what publishes the outbox beside it.
func (d *Daemon) openEngine(ctx context.Context) (err error) {
	var webhook deadletter.Notifier
	if d.cfg.DeadLetterWebhook != "" {
		secrets := d.cfg.Fresh("DEAD_LETTER_WEBHOOK_SECRET", d.warn)
		opened, err := deadletter.NewWebhook(deadletter.WebhookOptions{
			URL: d.cfg.DeadLetterWebhook, Secrets: func() []string { return config.Lines(secrets()) },
			TracerProvider: d.exports.Spans,
		})
		if err != nil {
			return err
		}
		webhook, d.closers = opened, append(d.closers, func() error {
			opened.Close()
			return nil
		})
	}
	var members []consumer.Member
	for _, queue := range d.queues() {
		h, check := d.o.Handler, handler.Check(nil)
		if h == nil {
			h, check, err = handler.Open(ctx, handler.Options{
				Config: queue, Fresh: func(key string) func() string { return queue.Fresh(key, d.warn) }, Logger: d.log,
				Registry: prometheus.WrapRegistererWith(prometheus.Labels{"queue": queue.Queue}, d.registry),
			})
		}
		if err != nil {
			return err
		}
		if check != nil {
			d.checks = append(d.checks, check)
		}
		m := consumer.Member{Config: queue.Config, Handler: h}
		m.Registerer, m.Logger, m.TracerProvider, m.Notifier = d.registry, d.log, d.exports.Spans, webhook
		members = append(members, m)
	}
	if !d.o.IgnoreOldLog {
		for _, queue := range d.queues() {
			d.checks = append(d.checks, d.oldLog(queue))
		}
	}
	if d.engine, err = consumer.OpenAll(ctx, members...); err == nil {
		d.closers = append(d.closers, d.engine.Close)
	}
	return err
}

// answers are what pages and API show; that of a relay has neither.
func (d *Daemon) answers() site.Options {
	cfg, o := d.cfg, site.Options{Expected: d.o.Expected}
	o.Addr, o.Version, o.Bare = cfg.HTTPAddr, d.o.Version, d.o.RelayOnly
	o.Metrics, o.Debug = d.registry, http.DefaultServeMux
	o.Guard.Token, o.Guard.TokensFile = cfg.Fresh("ADMIN_TOKEN", d.warn), cfg.AdminTokensFile
	o.Guard.Proxy, o.Guard.BasePath = site.Proxy(cfg.AdminProxy), cfg.BasePath
	o.View.Health, o.View.Logger = d.health, d.log
	o.View.Hide.Bodies, o.View.Hide.Pointers = cfg.UIHideBodies, cfg.UIRedact
	for _, queue := range d.queues() {
		o.Queues = append(o.Queues, store.Queue{Config: queue.Config, OrderOf: handler.OrderOf(queue.Handler)})
	}
	if d.engine != nil {
		o.Members = d.engine.Members()
	}
	return o
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
		if err = d.check(working); err == nil && working.Err() == nil {
			err = d.engine.Run(working) // intake, work, copies, acks, connections, pools
		}
	}
	stopWork()
	stopPages()
	wg.Wait()
	return errors.Join(err, <-served, d.close())
}

// check asks whether each handler can work, and whether no old consumer does, before any message is taken. A stop
// meanwhile is none of their errors.
func (d *Daemon) check(ctx context.Context) error {
	defer d.unchecked.Store(nil)
	var errs []error
	for _, check := range d.checks {
		err := check(ctx, func(err error) { d.unchecked.Store(new(consumer.DependencyMySQL + ": " + err.Error())) })
		if ctx.Err() == nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// close ends what was opened. An engine that never ran is closed too.
func (d *Daemon) close() error {
	var errs []error
	for _, end := range slices.Backward(d.closers) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
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

// ErrOldLog says that a classic consumer's table, which was taken over, has what is not known here.
var ErrOldLog = errors.New("the log of the old consumer was not taken over to its end")

const (
	// oldLogTime is how long a start looks at an old table. What it has not read by then is not looked at.
	oldLogTime = 5 * time.Second
	// oldLogPause is the pause before a database that is away is asked again.
	oldLogPause = time.Second
)

// oldLog refuses to begin beside an old consumer that is still at work: both would give stock back for copies of one
// message. While the database is away it waits.
func (d *Daemon) oldLog(queue config.Config) handler.Check {
	return func(ctx context.Context, waiting func(error)) error {
		s, err := store.Open(ctx, store.Queue{Config: queue.Config}, "check", store.Options{MaxOpen: 1})
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // nothing is left in it
		for said := false; ; said = true {
			err := d.lookAtOldLogs(ctx, s)
			switch {
			case err == nil, errors.Is(err, ErrOldLog):
				return err
			case ctx.Err() != nil, mysqldb.NoTable(err), mysqldb.NoDatabase(err): // of which the engine tells
				return nil
			}
			waiting(err)
			if !said {
				d.log.WarnContext(ctx, "cannot look yet whether an old log was taken over, nothing is consumed", "err", err)
			}
			select {
			case <-ctx.Done(): // which the next look sees
			case <-time.After(oldLogPause):
			}
		}
	}
}

func (d *Daemon) lookAtOldLogs(ctx context.Context, s *store.Store) error {
	doubts, err := legacyimport.Doubts(ctx, s.Records, s.Pool, s.Group, oldLogTime)
	if err != nil {
		return err
	}
	for _, doubt := range doubts {
		if doubt.Sure {
			return fmt.Errorf("%w: %s. What the old consumer has done since would be done again. End it, then `migrate "+
				"--from %s … --last-pass`; or start with --ignore-old-log, if nobody consumes by that table any more",
				ErrOldLog, doubt, doubt.Table)
		}
		d.log.WarnContext(ctx, "an old log", "table", doubt.Table, "doubt", doubt.Why)
	}
	return nil
}
