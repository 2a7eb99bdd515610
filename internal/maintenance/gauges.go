package maintenance

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
)

const gaugesEvery = 15 * time.Second // as often as a scrape

// gauges are what metrics say of the consumer log as a whole. Every process of a fleet shows the same figures: take the
// maximum, not the sum. Until the first look there are none, because nobody knows them: 0 would say that nothing is
// dead. While MySQL is away they keep their last values; rollbackd_dependency_up says that it is.
type gauges struct {
	records *dedup.Log
	log     *slog.Logger
	clocks  func(context.Context, error)

	dead, oldestDead, oldestOpen *prometheus.GaugeVec
}

func newGauges(
	records *dedup.Log, reg prometheus.Registerer, log *slog.Logger, clocks func(context.Context, error),
) (*gauges, error) {
	g := &gauges{
		records: records, log: log, clocks: clocks,
		dead:       gauge("rollbackd_dead_letters", "Messages that are dead-lettered now, 100,000 at most."),
		oldestDead: gauge("rollbackd_oldest_dead_letter_seconds", "Age of the oldest dead letter; 0 when there is none."),
		oldestOpen: gauge("rollbackd_oldest_open_seconds",
			"Age of the oldest row that is neither applied nor dead, by status; 0 when there is none.", "status"),
	}
	return g, errors.Join(reg.Register(g.dead), reg.Register(g.oldestDead), reg.Register(g.oldestOpen))
}

// gauge has no figure until it is set.
func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

// run looks at the log until ctx ends.
func (g *gauges) run(ctx context.Context) {
	tick := time.NewTicker(gaugesEvery)
	defer tick.Stop()
	for {
		if err := g.look(ctx); err != nil && ctx.Err() == nil {
			g.log.DebugContext(ctx, "figures of the consumer log", "err", err) // the engine says so if MySQL is away
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (g *gauges) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := g.records.Clocks(ctx)
	if err != nil && !errors.Is(err, dedup.ErrClocks) {
		return err
	}
	g.clocks(ctx, err)
	ages, err := g.records.OldestOpen(ctx)
	if err != nil {
		return err
	}
	dead, err := g.records.CountDead(ctx)
	if err != nil {
		return err
	}
	for _, status := range []dedup.Status{dedup.Processing, dedup.Failed} {
		g.oldestOpen.WithLabelValues(status.String()).Set(ages[status].Seconds()) // without a row it has no age: 0
	}
	g.oldestDead.WithLabelValues().Set(ages[dedup.Dead].Seconds())
	g.dead.WithLabelValues().Set(float64(dead))
	return nil
}
