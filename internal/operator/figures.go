package operator

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
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

// registry makes figures and collects what is wrong with them. They get the label group, because the processes of a
// group elect one; several keepers of one group in a process share them.
type registry struct {
	prometheus.Registerer

	err error
}

// Shared registers c, or gives what another consumer of this process has registered before in its place.
func Shared[C prometheus.Collector](reg prometheus.Registerer, c C) (C, error) {
	err := reg.Register(c)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := before.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	return c, err
}

// gauge has no figure until it is set.
func (r *registry) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g, err := Shared(r.Registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
	r.err = errors.Join(r.err, err)
	return g
}

// counter begins with 0 for each result, so that a rate over what never happened is 0; without results it is one
// number. What the settings switch off has no figures: an alert on something that never runs would else be silent, or
// never be.
func (r *registry) counter(on bool, name, help string, results ...string) *prometheus.CounterVec {
	labels := []string{"result"}[:min(1, len(results))]
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	if on {
		var err error
		c, err = Shared(r.Registerer, c)
		r.err = errors.Join(r.err, err)
	}
	for _, result := range results {
		c.WithLabelValues(result)
	}
	if len(results) == 0 {
		c.WithLabelValues()
	}
	return c
}

// figures are what the elected process does for all, and what metrics say of the consumer log as a whole. Of the log,
// every process of a fleet shows the same: take the maximum, not the sum. Until the first look there is nothing of it,
// because nobody knows it: 0 would say that nothing is dead. While MySQL is away its figures keep their last values;
// rollbackd_dependency_up says that it is.
type figures struct {
	leader                                                        *prometheus.GaugeVec
	retention, rows, compensated, letters, notified, notifiedOnes *prometheus.CounterVec
	late, dead, oldestDead, oldestOpen                            *prometheus.GaugeVec
}

func newFigures(retention time.Duration, o deadletter.CompensateOptions, reg *registry) *figures {
	prunes, compensates, notifies := retention > 0, o.After > 0, o.Notifier != nil
	f := &figures{
		leader: reg.gauge("rollbackd_leader",
			"1 while this process is elected for retention, compensation and notifying."),
		retention: reg.counter(prunes, "rollbackd_retention_runs_total",
			"Passes over the log that delete what has outlived its retention.", done, failed),
		rows: reg.counter(prunes, "rollbackd_retention_deleted_rows_total", "Rows that had outlived their retention."),
		late: reg.gauge("rollbackd_retention_late_seconds",
			"How long ago the rows that are deleted now have outlived their retention; only of the elected process."),
		compensated: reg.counter(compensates, "rollbackd_compensation_runs_total",
			"Runs that replay dead letters by themselves, when one was due.", done, vain, failed),
		letters: reg.counter(compensates, "rollbackd_compensation_letters_total",
			"Dead letters that such runs replayed, or found parked.", "replayed", "parked"),
		notified: reg.counter(notifies, "rollbackd_notifications_total",
			"Calls of the webhook, or of another notifier of dead letters.", done, failed),
		notifiedOnes: reg.counter(notifies, "rollbackd_notified_letters_total",
			"Dead letters that somebody was notified of."),
		dead: reg.gauge("rollbackd_dead_letters", "Messages that are dead-lettered now, 100,000 at most."),
		oldestDead: reg.gauge("rollbackd_oldest_dead_letter_seconds",
			"Age of the oldest dead letter; 0 when there is none."),
		oldestOpen: reg.gauge("rollbackd_oldest_open_seconds",
			"Age of the oldest row that is neither applied nor dead, by status; 0 when there is none.", "status"),
	}
	f.leader.WithLabelValues() // 0, unless another keeper of this process is elected
	return f
}

// deleted counts the rows of one pass.
func (f *figures) deleted() func(rows int) {
	before := 0
	return func(rows int) {
		f.rows.WithLabelValues().Add(float64(rows - before))
		before = rows
	}
}

// compensation counts a replay of letters by themselves.
func (f *figures) compensation(ctx context.Context, res deadletter.Result, err error) {
	result := resultOf(err)
	switch {
	case err == nil && res.Replayed+res.Parked == 0:
		result = vain
	case err != nil && ctx.Err() != nil: // it was cut short by the end of its term
		return
	}
	f.compensated.WithLabelValues(result).Inc()
	f.letters.WithLabelValues("replayed").Add(float64(res.Replayed))
	f.letters.WithLabelValues("parked").Add(float64(res.Parked))
}

// countedNotifier counts what becomes of notifying.
type countedNotifier struct {
	deadletter.Notifier

	figures *figures
}

// Notify hands the letters over.
func (n *countedNotifier) Notify(ctx context.Context, letters []deadletter.Letter) error {
	err := n.Notifier.Notify(ctx, letters)
	n.figures.notified.WithLabelValues(resultOf(err)).Inc()
	if err == nil {
		n.figures.notifiedOnes.WithLabelValues().Add(float64(len(letters)))
	}
	return err
}

// look shows what the log has.
func (f *figures) look(ctx context.Context, records *dedup.Log, clocks func(context.Context, error)) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := records.Clocks(ctx)
	if err != nil && !errors.Is(err, dedup.ErrClocks) {
		return err
	}
	clocks(ctx, err)
	ages, err := records.OldestOpen(ctx)
	if err != nil {
		return err
	}
	dead, err := records.CountDead(ctx)
	if err != nil {
		return err
	}
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		f.oldestOpen.WithLabelValues(status.String()).Set(ages[status].Seconds()) // without a row it has no age: 0
	}
	f.oldestDead.WithLabelValues().Set(ages[dedup.Dead].Seconds())
	f.dead.WithLabelValues().Set(float64(dead))
	return nil
}
