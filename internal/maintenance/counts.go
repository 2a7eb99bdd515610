package maintenance

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
)

// The results of what a keeper does.
const (
	done   = "done"
	failed = "failed"
	vain   = "vain" // a letter was due, and none could be moved
)

func resultOf(err error) string {
	if err != nil {
		return failed
	}
	return done
}

// counts is what the elected process does for all. What the settings switch off has no figures: an alert on something
// that never runs would else be silent, or never be.
type counts struct {
	leader                                                        prometheus.Gauge
	retention, rows, compensated, letters, notified, notifiedOnes *prometheus.CounterVec
}

func newCounts(o Options, reg prometheus.Registerer) (*counts, error) {
	c := &counts{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "rollbackd_leader", Help: "1 while this process is elected for retention, compensation and notifying.",
		}),
		retention: counter("rollbackd_retention_runs_total",
			"Passes over the log that delete what has outlived its retention.", "result"),
		rows: counter("rollbackd_retention_deleted_rows_total", "Rows that had outlived their retention."),
		compensated: counter("rollbackd_compensation_runs_total",
			"Runs that replay dead letters by themselves, when one was due.", "result"),
		letters: counter("rollbackd_compensation_letters_total", "Dead letters that such runs replayed, or found parked.",
			"result"),
		notified: counter("rollbackd_notifications_total", "Calls of the webhook, or of another notifier of dead letters.",
			"result"),
		notifiedOnes: counter("rollbackd_notified_letters_total", "Dead letters that somebody was notified of."),
	}
	all := []prometheus.Collector{c.leader}
	if o.Retention > 0 {
		zero(c.retention, done, failed)
		all = append(all, c.retention, c.rows)
	}
	if o.Compensate.After > 0 {
		zero(c.compensated, done, vain, failed)
		zero(c.letters, "replayed", "parked")
		all = append(all, c.compensated, c.letters)
	}
	if o.Compensate.Notifier != nil {
		zero(c.notified, done, failed)
		all = append(all, c.notified, c.notifiedOnes)
	}
	c.rows.WithLabelValues()
	c.notifiedOnes.WithLabelValues()
	var errs []error
	for _, one := range all {
		errs = append(errs, reg.Register(one))
	}
	return c, errors.Join(errs...)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// zero makes label values exist, so that a rate over what never happened is 0.
func zero(c *prometheus.CounterVec, values ...string) {
	for _, v := range values {
		c.WithLabelValues(v)
	}
}

// deleted counts the rows of one pass.
func (c *counts) deleted() func(rows int) {
	before := 0
	return func(rows int) {
		c.rows.WithLabelValues().Add(float64(rows - before))
		before = rows
	}
}

// compensation counts what happens to dead letters by itself.
func (c *counts) compensation(o deadletter.CompensateOptions) deadletter.CompensateOptions {
	o.Ran = func(res deadletter.Result, err error) {
		result := resultOf(err)
		if err == nil && res.Replayed+res.Parked == 0 {
			result = vain
		}
		c.compensated.WithLabelValues(result).Inc()
		c.letters.WithLabelValues("replayed").Add(float64(res.Replayed))
		c.letters.WithLabelValues("parked").Add(float64(res.Parked))
	}
	if o.Notifier != nil {
		o.Notifier = &countedNotifier{o.Notifier, c}
	}
	return o
}

// countedNotifier counts what becomes of notifying.
type countedNotifier struct {
	deadletter.Notifier

	counts *counts
}

// Notify hands the letters over.
func (n *countedNotifier) Notify(ctx context.Context, letters []deadletter.Letter) error {
	err := n.Notifier.Notify(ctx, letters)
	n.counts.notified.WithLabelValues(resultOf(err)).Inc()
	if err == nil {
		n.counts.notifiedOnes.WithLabelValues().Add(float64(len(letters)))
	}
	return err
}
