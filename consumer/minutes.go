package consumer

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// minuteTimeout bounds the writing of a minute, also at the end of the process.
const minuteTimeout = 2 * time.Second

// minutes writes down, once a minute, what an engine's metrics have counted since, so that pages show the whole fleet
// over a week. It costs no message anything. A minute that cannot be written is lost: what it counted is not added to a
// later one, where it did not happen.
type minutes struct {
	engine *engine
	depths *depths
	every  time.Duration
	was    dedup.Minute // what the metrics said before
	said   bool         // that the table, or a right on it, is missing
}

// run writes soon after the end of each minute, by this process's clock, the minute that was half of one ago by the
// database's: the same one, as long as the clocks agree by some seconds.
func (m *minutes) run(ctx context.Context) {
	for {
		end := time.Now().Truncate(m.every).Add(m.every)
		if wait.For(ctx, time.Until(end)) != nil {
			return
		}
		now := m.read()
		if wait.For(ctx, rand.N(m.every/12)) != nil { // not all of a fleet at once
			return
		}
		m.write(ctx, now, m.every/2)
	}
}

// end writes what came since the last minute.
func (m *minutes) end(ctx context.Context) { m.write(context.WithoutCancel(ctx), m.read(), 0) }

// read takes what the metrics say now.
func (m *minutes) read() dedup.Minute {
	e, now := m.engine, dedup.Minute{Dead: map[dedup.Reason]int64{}}
	now.Applied, now.Retried = counted(e.metrics.deliveries[Applied]), counted(e.metrics.deliveries[Retried])
	for _, r := range dedup.Reasons() {
		if r != dedup.ReasonEffectUnknown { // no delivery dies of it
			now.Dead[r] = counted(e.metrics.deadLettered.WithLabelValues(string(r)))
		}
	}
	lag, before := said(e.metrics.lag).GetHistogram(), int64(0)
	for i, b := range lag.GetBucket() {
		now.Lag[i] = int64(b.GetCumulativeCount()) - before
		before = int64(b.GetCumulativeCount())
	}
	now.Lag[len(now.Lag)-1] = int64(lag.GetSampleCount()) - before
	now.Waiting, now.Retrying = m.depths.waiting(e.cfg.Queue, e.cfg.RetryDelays)
	return now
}

// write adds what came since the last time to the minute that was, ago ago.
func (m *minutes) write(ctx context.Context, now dedup.Minute, ago time.Duration) {
	more := now
	more.Applied, more.Retried, more.Dead = now.Applied-m.was.Applied, now.Retried-m.was.Retried, map[dedup.Reason]int64{}
	for r, n := range now.Dead {
		more.Dead[r] = n - m.was.Dead[r]
	}
	for i := range more.Lag {
		more.Lag[i] -= m.was.Lag[i]
	}
	m.was = now
	ctx, cancel := context.WithTimeout(ctx, minuteTimeout)
	defer cancel()
	e := m.engine
	err := e.records.AddMinute(ctx, e.cfg.Group, e.cfg.Queue, ago, more)
	if (mysqldb.NoTable(err) || mysqldb.Denied(err)) && !m.said {
		m.said = true
		e.log.WarnContext(ctx, "the charts of the pages lack what this daemon does; messages are consumed all the same: "+
			"run rollbackd migrate, and see docs/rights.md", "err", err)
	} else if err != nil {
		e.log.DebugContext(ctx, "figures of a minute are lost", "err", err) // the engine says so if MySQL is away
	}
}

// said is what a metric says now.
func said(of prometheus.Metric) *dto.Metric {
	now := &dto.Metric{}
	_ = of.Write(now) // which fails for none that this package makes
	return now
}

func counted(c prometheus.Counter) int64 { return int64(said(c).GetCounter().GetValue()) }

// waiting is how many messages wait in the main queue of a consumer, and in its retry queues, as last looked at.
func (d *depths) waiting(queue string, delays []time.Duration) (main, retry sql.Null[int64]) {
	of := map[string]*sql.Null[int64]{queue: &main}
	for _, delay := range delays {
		of[rabbit.RetryQueue(queue, delay)] = &retry
	}
	shown := make(chan prometheus.Metric)
	go func() {
		defer close(shown)
		d.ready.Collect(shown)
	}()
	for metric := range shown {
		now := said(metric)
		for _, label := range now.GetLabel() {
			if sum := of[label.GetValue()]; sum != nil && label.GetName() == "queue" {
				*sum = sql.Null[int64]{V: sum.V + int64(now.GetGauge().GetValue()), Valid: true}
			}
		}
	}
	return main, retry
}
