package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// Relay is the relay of the outbox in the schema of the DSN, on a pool of its own, in a process of its own.
type Relay struct {
	*relay.Relay

	Close func() error // once it does not run any more
}

// OpenRelay asks no server yet.
func OpenRelay(
	ctx context.Context, cfg consumer.Config, log *slog.Logger, metrics prometheus.Registerer,
) (*Relay, error) {
	db, warnings, err := dedup.Open(ctx, cfg.MySQLDSN, Options{
		Program: rabbit.ConnectionName("relay"), MaxOpen: relay.Connections, CurrentDSN: cfg.Fresh.MySQLDSN,
		Warn: func(err error) {
			log.WarnContext(ctx, "certificates cannot be read again", "server", "mysql", "err", err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("MySQLDSN: %w", err)
	}
	for _, w := range warnings {
		log.WarnContext(ctx, "MySQLDSN: "+w)
	}
	pool, err := db.DB()
	if err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	cfg.Logger, cfg.Registerer = log, metrics
	told := cfg.Relay(pool)
	told.Retention = max(0, cfg.LogRetention) // beside an engine its keeper deletes what is parked
	r, err := relay.New(told)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return &Relay{r, pool.Close}, nil
}
