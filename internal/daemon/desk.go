package daemon

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/explain"
	stockhandler "github.com/rollbackd/rollbackd/internal/handler/stock"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// What a statement of the desk's may wait for: it gives way to messages.
const (
	deskLockWait = time.Second
	deskTimeout  = 10 * time.Second
)

// openDesk makes the desk at which persons act, on a pool of its own, so that what they do takes no connection from a
// lane. It asks no server yet.
func (d *Daemon) openDesk(ctx context.Context, engine consumer.Config) error {
	db, _, err := dedup.Open(ctx, d.cfg.MySQLDSN, dedup.OpenOptions{
		Program: rabbit.ConnectionName("desk"), MaxOpen: operator.Connections, LockWait: deskLockWait,
		ReadTimeout: deskTimeout, WriteTimeout: deskTimeout, CurrentDSN: d.logins.MySQLDSN,
	})
	if err != nil {
		return fmt.Errorf("ROLLBACKD_MYSQL_DSN: %w", err)
	}
	if d.deskPool, err = db.DB(); err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: d.cfg.LogTable, Lease: d.cfg.Lease, Delays: d.cfg.RetryDelays, MaxAttempts: d.cfg.MaxAttempts,
	})
	if err != nil {
		return err
	}
	letters, err := engine.Letters(db)
	if err != nil {
		return err
	}
	d.desk, err = operator.New(operator.Options{
		DB: db, Records: records, Letters: letters, Group: d.cfg.Group, Queue: d.cfg.Queue, Logger: d.log,
		Order: d.orders(records, db), Tasks: d.tasks(records, letters, db), Drain: d.cfg.DrainTimeout,
	})
	return err
}

// orders finds the keys of an order's messages; nil with a handler that knows no orders.
func (d *Daemon) orders(
	records *dedup.Log, db *gorm.DB,
) func(ctx context.Context, order string, among []string) ([]string, error) {
	if d.cfg.Handler != config.HandlerStock {
		return nil
	}
	o := explain.Options{Records: records, Group: d.cfg.Group, DB: db, OrderOf: stockhandler.OrderOf}
	return func(ctx context.Context, order string, among []string) ([]string, error) {
		return explain.KeysOf(ctx, o, order, among)
	}
}
