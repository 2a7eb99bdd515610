package consumer

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// registry takes figures for promauto, and keeps what is wrong with any of them in place of a panic. They get the label
// queue, so that several consumers of a process can use one Registerer.
type registry struct {
	prometheus.Registerer
	process prometheus.Registerer // without that label
	err     error
}

func newRegistry(cfg Config) *registry {
	return &registry{
		Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"queue": cfg.Queue}, cfg.Registerer),
		process:    cfg.Registerer,
	}
}

// MustRegister is what promauto calls.
func (r *registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		r.err = errors.Join(r.err, r.Register(c))
	}
}

func (r *registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// shared is for what has a label of its own for the name of a queue: all consumers of a process set the same one.
func (r *registry) shared(name, help string, labels ...string) *prometheus.GaugeVec {
	g, err := operator.Shared(r.process, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
	r.err = errors.Join(r.err, err)
	return g
}

func (r *registry) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(r).NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// metrics are the engine's figures. Every label value exists from the start, so that a rate over an outcome that never
// happened is 0 and not absent.
type metrics struct {
	deliveries   [len(outcomeNames)]prometheus.Counter // by Outcome
	deadLettered *prometheus.CounterVec
	batchSize    prometheus.Histogram
	phases       *prometheus.HistogramVec
	lag          prometheus.Histogram
	publishes    *prometheus.CounterVec
	dependency   map[string]prometheus.Gauge // whether it answers, by name; the lock's server is asked of the lock
	paused       *prometheus.GaugeVec
	degraded     *prometheus.GaugeVec
	contention   prometheus.Counter
	lost         *prometheus.CounterVec
	handler      *prometheus.HistogramVec
	calls        *prometheus.CounterVec // nil without a handler of [Calls]
}

// The phases of a batch, in order.
const (
	phaseLock   = "lock"
	phaseLookUp = "look_up"
	phaseFast   = "fast"
	phaseSlow   = "slow"
	phaseSettle = "settle"
)

func newMetrics(reg *registry, locks *locks, queue string, calls bool) *metrics {
	to := promauto.With(reg)
	histograms := func(name, help, label string, buckets ...float64) *prometheus.HistogramVec {
		return to.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{label})
	}
	up := func(name string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: "rollbackd_dependency_up", Help: "1 while the dependency answers.",
			ConstLabels: prometheus.Labels{"name": name}}
	}
	m := &metrics{
		deadLettered: reg.counters("rollbackd_dead_lettered_total", "Messages dead-lettered, by reason.", "reason"),
		batchSize: to.NewHistogram(prometheus.HistogramOpts{
			Name: "rollbackd_batch_size", Help: "Deliveries a lane took at once.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500},
		}),
		lag: to.NewHistogram(prometheus.HistogramOpts{
			Name:    "rollbackd_lag_seconds",
			Help:    "From publishing to the committed effect, of messages that say when they were published.",
			Buckets: dedup.LagBounds(),
		}),
		phases: histograms("rollbackd_batch_duration_seconds", "Time a batch spent in each phase.", "phase",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60),
		handler: histograms("rollbackd_handler_duration_seconds",
			"Time a call of the handler took, for a batch or for one message.", "result",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		publishes: reg.counters("rollbackd_publishes_total", "Copies published, by kind and result.", "kind", "result"),
		paused:    reg.gauges("rollbackd_paused", "1 while nothing is consumed, by why.", "why"),
		degraded: reg.shared("rollbackd_degraded",
			"1 while something is amiss with a queue although consuming goes on, by why.", "why", "queue"),
		contention: to.NewCounter(prometheus.CounterOpts{
			Name: "rollbackd_contention_total", Help: "Waits in MySQL for locks of others that ended in vain.",
		}),
		lost: reg.counters("rollbackd_dependency_lost_total",
			"Times that a dependency stopped answering and was waited for.", "name"),
		dependency: map[string]prometheus.Gauge{},
	}
	asked := []string{DependencyRabbitMQ, DependencyMySQL}
	if calls {
		asked = append(asked, DependencyService)
		// By the service's own word: not what the engine makes of it, which also depends on other calls and on the
		// attempts that are left.
		m.calls = reg.counters("rollbackd_calls_total", "Calls of the service, by what they came to.", "result")
		for what := CallApplied; what <= callStopped; what++ {
			m.calls.WithLabelValues(what.String())
		}
	}
	for _, name := range asked {
		m.dependency[name] = to.NewGauge(up(name))
	}
	if locks.Locker != (lock.None{}) {
		to.NewGaugeFunc(up(locks.name), locks.up)
	}
	for _, r := range lock.Results() {
		to.NewCounterFunc(prometheus.CounterOpts{
			Name: "rollbackd_lock_attempts_total", Help: "Identities tried to lock, by result.",
			ConstLabels: prometheus.Labels{"result": r.String()},
		}, func() float64 { return float64(locks.Attempts(r)) })
	}
	deliveries := reg.counters("rollbackd_deliveries_total",
		"Deliveries by how they ended; their sum is every delivery taken.", "outcome")
	for _, o := range Outcomes() {
		m.deliveries[o] = deliveries.WithLabelValues(o.String())
	}
	m.zero(queue, append(asked, locks.name))
	return m
}

// zero makes every label value exist that is not made above.
func (m *metrics) zero(queue string, dependencies []string) {
	for _, r := range dedup.Reasons() {
		if r != dedup.ReasonEffectUnknown { // no delivery dies of it
			m.deadLettered.WithLabelValues(string(r))
		}
	}
	for _, kind := range []string{kindRetry, kindLetter} {
		for _, result := range []string{copyConfirmed, copyFailed, copyUnknown} {
			m.publishes.WithLabelValues(kind, result)
		}
	}
	for _, phase := range []string{phaseLock, phaseLookUp, phaseFast, phaseSlow, phaseSettle} {
		m.phases.WithLabelValues(phase)
	}
	for _, result := range []string{handlerDone, handlerFailed} {
		m.handler.WithLabelValues(result)
	}
	for _, name := range dependencies {
		m.lost.WithLabelValues(name)
	}
	for _, why := range append(dependencies, pausedByBreaker, PausedByPerson, pausedByHeld) {
		m.paused.WithLabelValues(why)
	}
	backstop := rabbit.BackstopQueue(queue)
	for _, amiss := range []degradation{
		{notConsumed, backstop}, {publishBlocked, DependencyRabbitMQ}, {clocksDiffer, DependencyMySQL},
		{endsConnections, queue}, {endsConnections, backstop},
	} {
		m.degraded.WithLabelValues(amiss.why, amiss.queue)
	}
}

func (m *metrics) down(what string) {
	m.paused.WithLabelValues(what).Set(1)
	if up := m.dependency[what]; up != nil {
		up.Set(0)
	}
	if dos[what] != "" {
		m.lost.WithLabelValues(what).Inc()
	}
}

func (m *metrics) up(what string) {
	m.paused.WithLabelValues(what).Set(0)
	if up := m.dependency[what]; up != nil {
		up.Set(1)
	}
}

// The results of a call of the handler.
const (
	handlerDone   = "done"
	handlerFailed = "failed" // it blamed messages, or returned another error
)

// handled notes how long a call of the handler took.
func (m *metrics) handled(began time.Time, err error) {
	result := handlerDone
	if err != nil {
		result = handlerFailed
	}
	m.handler.WithLabelValues(result).Observe(time.Since(began).Seconds())
}

func (m *metrics) phase(name string, since time.Time) {
	m.phases.WithLabelValues(name).Observe(time.Since(since).Seconds())
}
