package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin"
	"github.com/rollbackd/rollbackd/internal/admin/api"
	"github.com/rollbackd/rollbackd/internal/admin/pages"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// programName is how the commands are called that pages name.
const programName = "rollbackd"

// What a statement of persons' acts may wait for: it gives way to messages.
const (
	actLockWait = time.Second
	actTimeout  = 10 * time.Second
)

// openOperator makes what persons act with, on a pool of its own, so that what they do takes no connection from a lane.
// It asks no server yet.
func (d *Daemon) openOperator(ctx context.Context) error {
	s, err := OpenStore(ctx, d.cfg, "desk", dedup.OpenOptions{
		MaxOpen: operator.Connections, LockWait: actLockWait, ReadTimeout: actTimeout, WriteTimeout: actTimeout,
	})
	if err != nil {
		return err
	}
	d.closers = append(d.closers, s.Close)
	o := operator.Options{
		Lookup: s.Lookup, Letters: s.Letters, Queue: d.cfg.Queue, Retention: d.cfg.Retention(), Logger: d.log,
		Drain: d.cfg.DrainTimeout,
	}
	d.desk, err = operator.New(o)
	return err
}

// openPages makes what people and programs see. It asks no server yet, and works on connections of its own.
func (d *Daemon) openPages(ctx context.Context, guard *admin.Guard, version string) error {
	cfg := d.cfg
	s, err := OpenStore(ctx, cfg, "pages", dedup.OpenOptions{ // the engine has said what the DSN is warned of
		MaxOpen: view.Connections, ReadTimeout: 2 * view.StatementTime, WriteTimeout: 2 * view.StatementTime,
		Statement: view.StatementTime,
	})
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	d.closers = append(d.closers, s.Close)
	servers := cfg.LockServers(rabbit.ConnectionName("pages"))
	servers.Connections = view.Connections
	servers.CurrentRedisURL, servers.CurrentMySQLDSN = cfg.Config.Fresh.RedisURL, cfg.Config.Fresh.MySQLDSN
	lock, closer, err := s.LockWords(ctx, servers)
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	d.closers = append(d.closers, closer.Close)
	d.view = view.New(view.Options{
		Lookup: s.Lookup, Letters: s.Letters, Desk: d.desk, Lock: lock,
		Names:  operator.Names{Queue: cfg.Queue, MaxAttempts: cfg.MaxAttempts, Program: programName},
		Elects: true, Metrics: d.registry, Health: d.health, Logger: d.log,
		Hide: view.Hide{Bodies: cfg.UIHideBodies, Pointers: cfg.UIRedact},
	})
	d.pages, d.api = pages.New(d.view, guard, version), api.New(d.view, guard)
	return nil
}
