package consumer

import (
	"context"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/outbox"
)

// migrateAndConsume is the work of a run.
func (c *Consumer) migrateAndConsume(intake, work context.Context) error {
	defer c.close(work)
	if c.cfg.Migrate {
		if err := c.migrate(intake); err != nil {
			if intake.Err() != nil {
				return nil
			}
			return err
		}
	}
	return c.consume(intake, work)
}

// migrate makes or updates the tables of the log. MySQL is waited for; what it answers is for a person.
func (c *Consumer) migrate(ctx context.Context) error {
	var extra []dedup.MigrationSet // of a lock that is in MySQL, and of the outbox
	if c.cfg.Lock == lock.KindMySQL {
		extra = append(extra, dedup.MigrationSet{Name: lockers.MigrationSet, Files: lockers.Migrations()})
	}
	if c.relay != nil {
		extra = append(extra, outbox.Sets().Extra...)
	}
	for pause := newBackOff(); ; {
		err := dedup.Migrate(ctx, c.db, dedup.MigrateOptions{
			Table: c.cfg.LogTable, Extra: extra,
			Waiting: func(err error) {
				c.log.WarnContext(ctx, "migrate: waiting for somebody else's lock", "err", err)
			},
		})
		if err == nil || mysqldb.Answered(err) || ctx.Err() != nil {
			return err
		}
		c.health.missing(ctx, DependencyMySQL, err)
		if err := wait.For(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}
