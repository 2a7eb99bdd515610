package consumer

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// metrics are the engine's figures. Every label value exists from the start, so that a rate over an outcome that never
// happened is 0 and not absent.
type metrics struct {
	deliveries   [len(outcomeNames)]prometheus.Counter // by Outcome
	deadLettered *prometheus.CounterVec
	batchSize    prometheus.Histogram
	phases       map[string]prometheus.Observer
	lag          prometheus.Histogram
	publishes    *prometheus.CounterVec
	dependency   map[string]*atomic.Bool // whether it answers, by name; Redis is asked of its lock
	paused       *prometheus.GaugeVec
}

// The phases of a batch, in order.
const (
	phaseLock   = "lock"
	phaseLookUp = "look_up"
	phaseFast   = "fast"
	phaseSlow   = "slow"
	phaseSettle = "settle"
)

func newMetrics(reg prometheus.Registerer, locks *locks) (*metrics, error) {
	m := &metrics{
		deadLettered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_dead_lettered_total", Help: "Messages dead-lettered, by reason.",
		}, []string{"reason"}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rollbackd_batch_size", Help: "Deliveries a lane took at once.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500},
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rollbackd_lag_seconds", Help: "From publishing to the committed effect, of messages that say when they were published.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
		}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_publishes_total", Help: "Copies published, by kind and result.",
		}, []string{"kind", "result"}),
		dependency: map[string]*atomic.Bool{DependencyRabbitMQ: {}, DependencyMySQL: {}},
		paused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollbackd_paused", Help: "1 while nothing is consumed, by why.",
		}, []string{"why"}),
		phases: map[string]prometheus.Observer{},
	}
	deliveries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rollbackd_deliveries_total", Help: "Deliveries by how they ended; their sum is every delivery taken.",
	}, []string{"outcome"})
	for _, o := range Outcomes() {
		m.deliveries[o] = deliveries.WithLabelValues(o.String())
	}
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rollbackd_batch_duration_seconds", Help: "Time a batch spent in each phase.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
	}, []string{"phase"})
	for _, p := range []string{phaseLock, phaseLookUp, phaseFast, phaseSlow, phaseSettle} {
		m.phases[p] = durations.WithLabelValues(p)
	}
	m.zero()
	collectors := []prometheus.Collector{
		deliveries, m.deadLettered, m.batchSize, durations, m.lag, m.publishes, m.paused,
	}
	up := func(name string, is func() bool) {
		collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "rollbackd_dependency_up", Help: "1 while the dependency answers.",
			ConstLabels: prometheus.Labels{"name": name},
		}, func() float64 {
			if is() {
				return 1
			}
			return 0
		}))
	}
	for name, is := range m.dependency {
		up(name, is.Load)
	}
	if locks.client != nil {
		up(DependencyRedis, locks.up)
	}
	for _, r := range dedup.LockResults() {
		collectors = append(collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "rollbackd_lock_attempts_total", Help: "Identities looked at in Redis, by result.",
			ConstLabels: prometheus.Labels{"result": r.String()},
		}, func() float64 { return locks.attempts(r) }))
	}
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) zero() {
	for _, r := range wire.Reasons() {
		m.deadLettered.WithLabelValues(string(r))
	}
	for _, kind := range []string{kindRetry, kindLetter} {
		for _, result := range []string{"confirmed", "failed"} {
			m.publishes.WithLabelValues(kind, result)
		}
	}
	for _, name := range []string{DependencyRabbitMQ, DependencyMySQL, DependencyRedis} {
		m.paused.WithLabelValues(name)
	}
	m.paused.WithLabelValues(pausedByBrake)
}

func (m *metrics) down(what string) {
	m.paused.WithLabelValues(what).Set(1)
	if is, ok := m.dependency[what]; ok {
		is.Store(false)
	}
}

func (m *metrics) up(what string) {
	m.paused.WithLabelValues(what).Set(0)
	if is, ok := m.dependency[what]; ok {
		is.Store(true)
	}
}

func (m *metrics) phase(name string, since time.Time) {
	m.phases[name].Observe(time.Since(since).Seconds())
}
