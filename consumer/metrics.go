package consumer

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
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
	dependency   map[string]*atomic.Bool // whether it answers, by name; the lock's server is asked of the lock
	paused       *prometheus.GaugeVec
	holding      atomic.Pointer[holding] // what lanes hold; nil until the engine is made
	degraded     *prometheus.GaugeVec
	contention   prometheus.Counter
	lost         *prometheus.CounterVec
	handler      *prometheus.HistogramVec
	calls        map[CallMeaning]prometheus.Counter // nil without a handler of [Calls]
}

// The phases of a batch, in order.
const (
	phaseLock   = "lock"
	phaseLookUp = "look_up"
	phaseFast   = "fast"
	phaseSlow   = "slow"
	phaseSettle = "settle"
)

func newMetrics(reg prometheus.Registerer, locks *locks, queue string, calls bool) (*metrics, error) {
	m := &metrics{
		deadLettered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_dead_lettered_total", Help: "Messages dead-lettered, by reason.",
		}, []string{"reason"}),
		batchSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "rollbackd_batch_size", Help: "Deliveries a lane took at once.",
			Buckets: []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500},
		}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rollbackd_lag_seconds",
			Help:    "From publishing to the committed effect, of messages that say when they were published.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200},
		}),
		publishes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_publishes_total", Help: "Copies published, by kind and result.",
		}, []string{"kind", "result"}),
		dependency: map[string]*atomic.Bool{DependencyRabbitMQ: {}, DependencyMySQL: {}},
		paused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollbackd_paused", Help: "1 while nothing is consumed, by why.",
		}, []string{"why"}),
		degraded: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "rollbackd_degraded", Help: "1 while something is amiss with a queue although consuming goes on, by why.",
		}, []string{"why", "queue"}),
		contention: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "rollbackd_contention_total", Help: "Waits in MySQL for locks of others that ended in vain.",
		}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_dependency_lost_total", Help: "Times that a dependency stopped answering and was waited for.",
		}, []string{"name"}),
		handler: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rollbackd_handler_duration_seconds", Help: "Time a call of the handler took, for a batch or for one message.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"result"}),
		phases: map[string]prometheus.Observer{},
	}
	collectors := []prometheus.Collector{
		m.countDeliveries(), m.deadLettered, m.batchSize, m.timePhases(), m.lag, m.publishes, m.paused, m.degraded,
		m.countHeld(), m.contention, m.lost, m.handler,
	}
	if calls {
		m.dependency[DependencyService] = &atomic.Bool{}
		collectors = append(collectors, m.countCalls())
	}
	m.zero(queue, locks.name)
	collectors = append(append(collectors, m.watchDependencies(locks)...), countLocks(locks)...)
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) countDeliveries() prometheus.Collector {
	deliveries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rollbackd_deliveries_total", Help: "Deliveries by how they ended; their sum is every delivery taken.",
	}, []string{"outcome"})
	for _, o := range Outcomes() {
		m.deliveries[o] = deliveries.WithLabelValues(o.String())
	}
	return deliveries
}

// countCalls counts what each call came to, by the service's own word: not what the engine makes of it, which also
// depends on other calls and on the attempts that are left.
func (m *metrics) countCalls() prometheus.Collector {
	all := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rollbackd_calls_total", Help: "Calls of the service, by what they came to.",
	}, []string{"result"})
	m.calls = map[CallMeaning]prometheus.Counter{}
	for what := CallApplied; what <= callStopped; what++ {
		m.calls[what] = all.WithLabelValues(what.String())
	}
	return all
}

func (m *metrics) timePhases() prometheus.Collector {
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "rollbackd_batch_duration_seconds", Help: "Time a batch spent in each phase.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60},
	}, []string{"phase"})
	for _, p := range []string{phaseLock, phaseLookUp, phaseFast, phaseSlow, phaseSettle} {
		m.phases[p] = durations.WithLabelValues(p)
	}
	return durations
}

func (m *metrics) countHeld() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rollbackd_held_deliveries", Help: "Deliveries whose copy a queue refuses, because it is full or gone.",
	}, func() float64 {
		if h := m.holding.Load(); h != nil {
			return float64(h.size())
		}
		return 0
	})
}

func (m *metrics) watchDependencies(locks *locks) (all []prometheus.Collector) {
	up := func(name string, is func() bool) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
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
	if locks.locker != nil {
		up(locks.name, locks.up)
	}
	return all
}

func countLocks(locks *locks) (all []prometheus.Collector) {
	for _, r := range lock.Results() {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "rollbackd_lock_attempts_total", Help: "Identities tried to lock, by result.",
			ConstLabels: prometheus.Labels{"result": r.String()},
		}, func() float64 { return locks.attempts(r) }))
	}
	return all
}

// zero makes every label value exist.
func (m *metrics) zero(queue, lockName string) {
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
	for _, name := range []string{DependencyRabbitMQ, DependencyMySQL, lockName} {
		m.paused.WithLabelValues(name)
		m.lost.WithLabelValues(name)
	}
	if m.dependency[DependencyService] != nil {
		m.paused.WithLabelValues(DependencyService)
		m.lost.WithLabelValues(DependencyService)
	}
	for _, result := range []string{handlerDone, handlerFailed} {
		m.handler.WithLabelValues(result)
	}
	m.paused.WithLabelValues(pausedByBrake)
	m.paused.WithLabelValues(PausedByPerson)
	m.paused.WithLabelValues(pausedByHeld)
	m.degraded.WithLabelValues(notConsumed, rabbit.BackstopQueue(queue))
	m.degraded.WithLabelValues(publishBlocked, DependencyRabbitMQ)
	m.degraded.WithLabelValues(clocksDiffer, DependencyMySQL)
	for _, queue := range []string{queue, rabbit.BackstopQueue(queue)} {
		m.degraded.WithLabelValues(endsConnections, queue)
	}
}

func (m *metrics) down(what string) {
	m.paused.WithLabelValues(what).Set(1)
	if is, ok := m.dependency[what]; ok {
		is.Store(false)
	}
	switch what {
	case DependencyRabbitMQ, DependencyMySQL, DependencyRedis, DependencyLock, DependencyService:
		m.lost.WithLabelValues(what).Inc()
	}
}

func (m *metrics) up(what string) {
	m.paused.WithLabelValues(what).Set(0)
	if is, ok := m.dependency[what]; ok {
		is.Store(true)
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
	m.phases[name].Observe(time.Since(since).Seconds())
}
