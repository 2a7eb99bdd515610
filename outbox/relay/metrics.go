package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are nil-safe: without a registerer nothing is kept.
type metrics struct {
	published *prometheus.CounterVec
	lag       prometheus.Histogram
}

func newMetrics(to prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rollbackd_outbox_publishes_total",
			Help: "Messages of the outbox that were published, by result: confirmed, refused.",
		}, []string{"result"}),
		lag: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "rollbackd_outbox_lag_seconds",
			Help:    "Time from when a message was due to when RabbitMQ confirmed it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600, 3600, 86400},
		}),
	}
	if to == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.published, m.lag} {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) sent(lag time.Duration) {
	m.published.WithLabelValues("confirmed").Inc()
	m.lag.Observe(lag.Seconds())
}

func (m *metrics) refused(n int) { m.published.WithLabelValues("refused").Add(float64(n)) }
