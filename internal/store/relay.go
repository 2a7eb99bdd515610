package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// A relay may have a sixteenth of MEMORY_BUDGET in each of its batches, whose bodies are in memory twice.
const (
	relayBatches = 4
	relayShare   = 4 * relayBatches
	relayMost    = 8 << 20 // bytes of one batch
)

// RelayConnections is how many connections of MySQL a relay has at most.
const RelayConnections = relayBatches + 2

// Relay is the relay of the outbox in the schema of ROLLBACKD_MYSQL_DSN, on a pool of its own.
type Relay struct {
	*relay.Relay

	Close func() error // once it does not run any more
}

// OpenRelay asks no server yet. A retention of 0 leaves what is parked to somebody else.
func OpenRelay(
	ctx context.Context, cfg config.Config, retention time.Duration, log *slog.Logger, metrics prometheus.Registerer,
) (*Relay, error) {
	db, warnings, err := dedup.Open(ctx, cfg.MySQLDSN, Options{
		Program: rabbit.ConnectionName("relay"), MaxOpen: RelayConnections, CurrentDSN: cfg.Config.Fresh.MySQLDSN,
		Warn: func(err error) {
			log.WarnContext(ctx, "certificates cannot be read again", "server", "mysql", "err", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	for _, w := range warnings {
		log.WarnContext(ctx, "ROLLBACKD_MYSQL_DSN: "+w)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	r, err := relay.New(relay.Config{
		DB: pool, AMQPURLs: cfg.AMQPURLs, CurrentAMQPURLs: cfg.Config.Fresh.AMQPURLs,
		Exchange: cfg.Exchange, RoutingKey: cfg.RoutingKey(),
		InFlight: relayBatches, BatchSum: int(min(relayMost, cfg.MemoryBudget/relayShare)),
		Retention: retention, DrainTimeout: cfg.DrainTimeout, Logger: log, Metrics: metrics,
	})
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &Relay{r, pool.Close}, nil
}
