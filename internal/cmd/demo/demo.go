package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// The size of the demo.
const (
	orders        = 20_000
	duplicates    = .2 // of the orders' messages are published twice
	unknownOrders = 3  // messages of orders whose reservation is not there yet
	malformed     = 2
	conflicts     = 2 // further messages under a key that another body has
	skus          = 200
	amount        = 100_000 // of each sku
)

// retryDelays are short, so that an unknown order's five attempts take two seconds and not the three minutes of a
// production.
const retryDelays = "200ms,400ms,600ms,800ms"

// database is the schema's name.
const database = "rollbackd_demo"

// demo is what the steps hand on to each other, in their order.
type demo struct {
	out    *os.File
	tables tables

	dir    string // everything is below it
	stack  *stack.Stack
	binary string
	env    []string // of the binary
	cfg    config.Config
	db     *gorm.DB
	pool   *sql.DB
	daemon *program.Process
	log    *os.File // the daemon's

	rng     *rand.Rand
	oracle  oracle.World
	ledger  *oracle.Ledger
	initial oracle.Stock // before any reservation

	known, unknown []shop.Order
	reserved       oracle.Stock // after the reservations, before the rollbacks
	began          time.Time    // of publishing
	took           time.Duration
	first          outcome      // of the messages
	mended         oracle.Stock // after the unknown orders' reservations
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// begin starts the servers, builds the binary and migrates.
func (d *demo) begin(ctx context.Context) (err error) {
	d.say("rollbackd: %s cancelled orders give their stock back, each exactly once\n", number(orders))
	if d.dir, err = os.MkdirTemp("", "rollbackd-demo-"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	if err := os.Setenv("TMPDIR", d.dir); err != nil { // the servers' folders go below ours
		return fmt.Errorf("use our folder: %w", err)
	}
	d.say("folder       %s, removed at the end", d.dir)
	if d.stack, err = stack.Start(ctx, stack.Options{}); err != nil {
		return err
	}
	d.say("servers      of our own: RabbitMQ on %s, MariaDB on %s, Redis on %s", d.stack.RabbitMQ.Addr(),
		d.stack.MySQL.Addr(), d.stack.Redis.Addr())
	if d.binary, err = program.Build(ctx, d.dir); err != nil {
		return err
	}
	if err := d.open(ctx); err != nil {
		return err
	}
	if _, err := program.Run(ctx, d.binary, d.env, "migrate"); err != nil {
		return err
	}
	if err := d.tables.create(ctx, d.pool); err != nil {
		return err
	}
	d.say("migrate      tables, exchange and queues are made; %s", d.tables)
	return nil
}

// open makes the schema, the settings and what the demo itself uses of them.
func (d *demo) open(ctx context.Context) error {
	dsn, err := d.makeSchema(ctx)
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"AMQP_URL": d.stack.RabbitMQ.URL(), "MYSQL_DSN": dsn, "REDIS_URL": d.stack.Redis.URL(),
		"RETRY_DELAYS": retryDelays, "HTTP_ADDR": "127.0.0.1:0", "LOG_FORMAT": config.LogFormatJSON,
	} {
		d.env = append(d.env, config.Prefix+name+"="+value)
	}
	d.env = append(d.env, d.tables.settings()...)
	if d.cfg, _, err = config.Load(d.env); err != nil {
		return fmt.Errorf("settings of the demo: %w", err)
	}
	if d.db, _, err = dedup.Open(ctx, dsn, dedup.OpenOptions{Program: rabbit.ConnectionName("demo")}); err != nil {
		return err
	}
	if d.pool, err = d.db.DB(); err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	d.rng = rand.New(rand.NewPCG(1, 1)) // the same shop each time
	d.oracle = oracle.World{
		DB: d.pool, LogTable: d.cfg.LogTable, Group: d.cfg.Group, KeyFrom: d.cfg.KeyFrom,
		AMQPURL: d.cfg.AMQPURLs[0], Queue: d.cfg.Queue, Delays: d.cfg.RetryDelays,
	}
	d.ledger, err = d.oracle.NewLedger()
	return err
}

func (d *demo) makeSchema(ctx context.Context) (dsn string, err error) {
	server, err := mysql.ParseDSN(d.stack.MySQL.URL())
	if err != nil {
		return "", fmt.Errorf("the server's DSN: %w", err)
	}
	connector, err := mysql.NewConnector(server)
	if err != nil {
		return "", fmt.Errorf("connect to the server: %w", err)
	}
	pool := sql.OpenDB(connector)
	defer pool.Close()
	if _, err := pool.ExecContext(ctx, "CREATE DATABASE "+database); err != nil {
		return "", fmt.Errorf("make the schema: %w", err)
	}
	server.DBName = database
	return server.FormatDSN(), nil
}

// startDaemon starts rollbackd run and waits until it consumes.
func (d *demo) startDaemon(ctx context.Context) (err error) {
	if d.log, err = os.Create(filepath.Join(d.dir, "daemon.log")); err != nil {
		return fmt.Errorf("open the daemon's log: %w", err)
	}
	if d.daemon, err = program.Start(program.Options{
		Path: d.binary, Args: []string{"run"}, Env: d.env, Log: d.log,
	}); err != nil {
		return err
	}
	const patience = 20 * time.Second
	err = d.until(ctx, patience, 20*time.Millisecond, func() (bool, error) {
		status, _, err := d.daemon.Get(ctx, "/readyz")
		return status == 200, err
	})
	if err != nil {
		return fmt.Errorf("wait for /readyz: %w", err)
	}
	d.say("run          the daemon consumes, process %d, batches of up to %d", d.daemon.Pid(), d.cfg.BatchSize)
	d.say("             ROLLBACKD_RETRY_DELAYS=%s: short for the demo, 1s,5s,30s,2m otherwise", retryDelays)
	return nil
}

// until asks yes every so often.
func (d *demo) until(ctx context.Context, patience, pause time.Duration, yes func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it took over %v", patience))
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		done, err := yes()
		if done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-d.daemon.Exited():
			return errors.New("the daemon has ended")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// end stops what runs, removes what was written, and makes sure that nothing is left.
func (d *demo) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	if d.daemon != nil {
		errs = append(errs, d.stopDaemon(ctx))
	}
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
	}
	if d.stack != nil {
		errs = append(errs, d.stack.Stop())
	}
	if d.dir == "" {
		return errors.Join(errs...)
	}
	errs = append(errs, os.RemoveAll(d.dir))
	left, err := waitForNone(ctx, d.dir)
	if len(left) > 0 {
		err = fmt.Errorf("still running: %s", strings.Join(left, ", "))
	}
	if err = errors.Join(append(errs, err)...); err == nil {
		d.say("\nnothing is left: no process of the demo runs (epmd included), its folder is removed")
	}
	return err
}

// stopDaemon drains the daemon, once.
func (d *demo) stopDaemon(ctx context.Context) error {
	daemon := d.daemon
	d.daemon = nil
	code, err := daemon.Stop(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("the daemon exited with %d instead of draining:\n%s", code, d.lastWords())
	}
	return errors.Join(err, d.log.Close())
}

// lastWords are the end of the daemon's log.
func (d *demo) lastWords() string {
	text, err := os.ReadFile(d.log.Name())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
