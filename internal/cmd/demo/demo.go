package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
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
	ctx    context.Context
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
	log    program.Log // the daemon's

	rng     *rand.Rand
	route   shop.Route
	oracle  oracle.World
	ledger  *oracle.Ledger
	initial oracle.Stock // before any reservation

	known, unknown []shop.Order
	reserved       oracle.Stock // after the reservations, before the rollbacks
	took           time.Duration
	first          outcome      // of the messages
	mended         oracle.Stock // after the unknown orders' reservations
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// begin starts the servers, builds the binary and migrates.
func (d *demo) begin() {
	d.dir = must.Get(os.MkdirTemp("", "rollbackd-demo-"))
	must.OK(os.Setenv("TMPDIR", d.dir)) // the servers' folders go below ours
	d.say("folder       %s, removed at the end", d.dir)
	d.stack = must.Get(stack.Start(d.ctx, stack.Options{}))
	d.say("servers      of our own: RabbitMQ on %s, MariaDB on %s, Redis on %s", d.stack.RabbitMQ.Addr(),
		d.stack.MySQL.Addr(), d.stack.Redis.Addr())
	d.binary = must.Get(program.Build(d.ctx, d.dir))
	d.open()
	must.Get(program.Run(d.ctx, d.binary, d.env, "migrate"))
	d.tables.create(d.ctx, d.pool)
	d.say("migrate      tables, exchange and queues are made; %s", d.tables)
}

// open makes the schema, the settings and what the demo itself uses of them.
func (d *demo) open() {
	server := must.Get(mysql.ParseDSN(d.stack.MySQL.URL()))
	pool := stack.OpenMySQL(server.Clone())
	defer pool.Close()
	must.Exec(d.ctx, pool, "CREATE DATABASE "+database)
	server.DBName = database
	for name, value := range map[string]string{
		"AMQP_URL": d.stack.RabbitMQ.URL(), "MYSQL_DSN": server.FormatDSN(), "REDIS_URL": d.stack.Redis.URL(),
		"RETRY_DELAYS": retryDelays, "HTTP_ADDR": "127.0.0.1:0", "LOG_FORMAT": config.LogFormatJSON,
	} {
		d.env = append(d.env, config.Prefix+name+"="+value)
	}
	d.env = append(d.env, d.tables.settings()...)
	var err error
	d.cfg, _, err = config.Load(d.env)
	must.OK(err, "settings of the demo")
	d.db, _, err = dedup.Open(d.ctx, server.FormatDSN(), dedup.OpenOptions{Program: rabbit.ConnectionName("demo")})
	must.OK(err)
	d.pool = must.Get(d.db.DB())
	d.rng = rand.New(rand.NewPCG(1, 1)) // the same shop each time
	d.route = shop.Route{Exchange: d.cfg.Exchange, Key: d.cfg.RoutingKeys[0]}
	d.oracle = oracle.World{
		DB: d.pool, LogTable: d.cfg.LogTable, Group: d.cfg.Group, KeyFrom: d.cfg.KeyFrom,
		AMQPURL: d.cfg.AMQPURLs[0], Queue: d.cfg.Queue, Delays: d.cfg.RetryDelays,
	}
	d.ledger = must.Get(d.oracle.NewLedger())
}

// startDaemon starts rollbackd run and waits until it consumes.
func (d *demo) startDaemon() {
	d.daemon = must.Get(program.Start(program.Options{Path: d.binary, Args: []string{"run"}, Env: d.env, Log: &d.log}))
	d.until("the daemon to be ready", 20*time.Second, 20*time.Millisecond, func() bool {
		status, _, err := d.daemon.Get(d.ctx, "/readyz")
		must.OK(err)
		return status == 200
	})
	d.say("run          the daemon consumes, process %d, batches of up to %d", d.daemon.Pid(), d.cfg.BatchSize)
	d.say("             ROLLBACKD_RETRY_DELAYS=%s: short for the demo, 1s,5s,30s,2m otherwise", retryDelays)
}

// until asks yes every so often.
func (d *demo) until(what string, patience, pause time.Duration, yes func() bool) {
	ok := poll.During(d.ctx, patience, pause, func() bool {
		select {
		case <-d.daemon.Exited():
			must.OK(fmt.Errorf("the daemon has ended; its last words:\n%s", d.lastWords()))
		default:
		}
		return yes()
	})
	if !ok {
		must.OK(fmt.Errorf("wait for %s: it took over %v: %w", what, patience, context.Cause(d.ctx)))
	}
}

// end stops what runs and removes what was written.
func (d *demo) end() error {
	d.ctx = context.WithoutCancel(d.ctx)
	var errs []error
	if d.daemon != nil {
		errs = append(errs, must.Catch(d.stopDaemon))
	}
	if d.pool != nil {
		errs = append(errs, d.pool.Close())
	}
	if d.stack != nil {
		errs = append(errs, d.stack.Stop())
	}
	err := errors.Join(append(errs, os.RemoveAll(d.dir))...)
	if err == nil && d.dir != "" {
		d.say("\nnothing is left: the daemon and the servers have ended, the folder is removed")
	}
	return err
}

// stopDaemon drains the daemon, once.
func (d *demo) stopDaemon() {
	daemon := d.daemon
	d.daemon = nil
	ctx, cancel := context.WithTimeout(d.ctx, time.Minute)
	defer cancel()
	code, err := daemon.Stop(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("the daemon exited with %d instead of draining:\n%s", code, d.lastWords())
	}
	must.OK(err)
}

// lastWords are the end of the daemon's log.
func (d *demo) lastWords() string { return d.log.Tail(10) }
