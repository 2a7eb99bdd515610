package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/pages"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/explain"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/locking"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/lock"
)

// programName is how the commands are called that pages name.
const programName = "rollbackd"

// openPages makes what people and programs see. It asks no server yet, and works on connections of its own.
func (d *Daemon) openPages(ctx context.Context, guard *admin.Guard, version string) error {
	cfg := d.cfg
	db, _, err := dedup.Open(ctx, cfg.MySQLDSN, dedup.OpenOptions{ // the engine has said what the DSN is warned of
		Program: rabbit.ConnectionName("pages"), MaxOpen: view.Connections, ReadTimeout: 2 * view.StatementTime,
		WriteTimeout: 2 * view.StatementTime, Statement: view.StatementTime, CurrentDSN: d.logins.MySQLDSN,
	})
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	pool, err := db.DB()
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	d.closers = append(d.closers, pool.Close)
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: cfg.LogTable, Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts,
	})
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: cfg.AMQPURLs, CurrentAMQPURLs: d.logins.AMQPURLs, Name: rabbit.ConnectionName("pages"),
		Group: cfg.Group, Queue: cfg.Queue, KeyFrom: cfg.KeyFrom, Retention: cfg.Retention(), MaxReplays: cfg.MaxReplays,
	})
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	o := explain.Options{Records: records, Group: cfg.Group, OrderOf: stockhandler.OrderOf}
	if cfg.Handler == config.HandlerStock {
		o.DB = db
	}
	showLock, err := d.lockWords(ctx, cfg, records)
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	d.view = view.New(view.Options{
		Records: records, Letters: letters, Story: o, Lock: showLock, Group: cfg.Group,
		Names:  explain.Names{Queue: cfg.Queue, MaxAttempts: cfg.MaxAttempts, Program: programName},
		Elects: true, Metrics: d.registry, Health: d.health, Logger: d.log,
		Hide: view.Hide{Bodies: cfg.UIHideBodies, Pointers: cfg.UIRedact},
	})
	d.pages, err = pages.New(pages.Options{
		View: d.view, Guard: guard, Desk: d.desk, Group: cfg.Group, Queue: cfg.Queue, Version: version, Logger: d.log,
	})
	if err != nil {
		return err
	}
	d.api, err = api.New(api.Options{View: d.view, Guard: guard, Desk: d.desk, Logger: d.log})
	return err
}

// lockWords says in words who holds a lock; nil without one.
func (d *Daemon) lockWords(
	ctx context.Context, cfg config.Config, records *dedup.Log,
) (func(context.Context, dedup.Identity) string, error) {
	servers := cfg.LockServers(rabbit.ConnectionName("pages"))
	if servers.None() {
		return nil, nil
	}
	servers.Connections = view.Connections
	servers.CurrentRedisURL, servers.CurrentMySQLDSN = d.logins.RedisURL, d.logins.MySQLDSN
	locker, closer, err := locking.Open(ctx, servers, lock.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	d.closers = append(d.closers, closer.Close)
	return func(ctx context.Context, k dedup.Identity) string {
		schema, err := records.SchemaID(ctx)
		if err != nil {
			return "unknown: " + err.Error()
		}
		state, err := locker.Show(ctx, lock.NameOf(schema, k.Group, k.Tag, k.Key))
		if err != nil {
			return "unknown: " + err.Error()
		}
		return explain.LockText(state)
	}, nil
}
