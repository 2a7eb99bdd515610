package relay

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/outbox"
)

// metrics are nil-safe: without a registerer nothing is kept.
type metrics struct {
	published *prometheus.CounterVec
	lag       prometheus.Histogram
}

func newMetrics(to prometheus.Registerer, r *Relay) (*metrics, error) {
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
	all := []prometheus.Collector{m.published, m.lag}
	gauge := func(name, help, state string, value func() float64) {
		o := prometheus.GaugeOpts{Name: name, Help: help}
		if state != "" {
			o.ConstLabels = prometheus.Labels{"state": state}
		}
		all = append(all, prometheus.NewGaugeFunc(o, value))
	}
	seen := &survey{of: outbox.Rows{DB: r.cfg.DB}}
	for state, of := range map[outbox.State]func(outbox.Survey) int{
		outbox.Waiting: func(s outbox.Survey) int { return s.Waiting },
		outbox.Due:     func(s outbox.Survey) int { return s.Due },
		outbox.Refused: func(s outbox.Survey) int { return s.Refused },
		outbox.Parked:  func(s outbox.Survey) int { return s.Parked },
	} {
		gauge("rollbackd_outbox_rows", "Rows of the outbox, by state: waiting, due, refused, parked; 10,000 at most.",
			string(state), func() float64 { return float64(of(seen.now())) })
	}
	gauge("rollbackd_outbox_oldest_due_seconds", "Since when the message of the outbox has been due that has waited "+
		"longest; parked ones do not count.", "", func() float64 { return seen.now().Lag.Seconds() })
	gauge("rollbackd_outbox_relay_ready", "1 while the relay misses nothing, 0 while a server is away or takes nothing.",
		"", func() float64 {
			if s := r.State(); s.Working && len(s.Misses) == 0 {
				return 1
			}
			return 0
		})
	for _, c := range all {
		if err := to.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// survey is made when somebody looks, and not again for a while: an idle relay asks nothing for it.
type survey struct {
	of outbox.Rows

	mu   sync.Mutex
	last outbox.Survey // guarded by mu
	at   time.Time     // of the last answer; guarded by mu
	next time.Time     // not to be asked for before; guarded by mu
}

const (
	surveyFor  = 5 * time.Second
	surveyTime = 2 * time.Second // it may take
)

// now is how the outbox stands, or stood at the last answer; what is due grows older without one.
func (v *survey) now() outbox.Survey {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Now().After(v.next) {
		ctx, cancel := context.WithTimeout(context.Background(), surveyTime)
		defer cancel()
		if s, err := v.of.Survey(ctx); err == nil { // else the relay says what is wrong
			v.last, v.at = s, time.Now()
		}
		v.next = time.Now().Add(surveyFor)
	}
	last := v.last
	if last.Lag > 0 {
		last.Lag += time.Since(v.at)
	}
	return last
}

func (m *metrics) sent(lag time.Duration) {
	m.published.WithLabelValues("confirmed").Inc()
	m.lag.Observe(lag.Seconds())
}

func (m *metrics) refused(n int) { m.published.WithLabelValues("refused").Add(float64(n)) }
