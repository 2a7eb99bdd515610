package ground

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

const (
	// Exchange, Queue and RoutingKey are the product's own defaults.
	Exchange, Queue, RoutingKey = "stock", "stock.rollback", "stock.rollback"
	// Group is the product's default too; rivals write it into the same column.
	Group = "stock-rollback"
)

// databaseOptions hold for everybody. The buffer pool holds all rows, as a production server's holds its hot ones, and
// the redo log is large enough that no round is spent on a forced checkpoint. Durability stays as package stack sets
// it: innodb_flush_log_at_trx_commit=1. A loose option is passed over by a server that does not know it: MariaDB has
// the one for the redo log, MySQL 9 only the other.
var databaseOptions = []string{"--innodb-buffer-pool-size=4G", "--loose-innodb-log-file-size=1G",
	"--loose-innodb-redo-log-capacity=1G"}

// brokerOptions keep the memory alarm, which blocks publishers, away from a backlog of a million.
const brokerOptions = "vm_memory_high_watermark.absolute = 6GB"

// Options say what to start.
type Options struct {
	// Statements lets the database time its statements, which costs a few percent.
	Statements bool
	// Builds are those of the product, as [Build] says; none means the one that this module uses.
	Builds []string
	Log    io.Writer
}

// Ground is a running set of servers with the product's binary.
type Ground struct {
	Stack  *stack.Stack
	Builds []Build // of the product
	Self   string  // this program, which is the rivals

	dir     string
	module  string // the product's folder
	service *service
	amqp    *amqp.Connection
	redis   *redis.Client
	queues  []string // of the round
}

// Start builds the product, starts the servers and makes the table of numbers that seeding reads.
func Start(ctx context.Context, o Options) (g *Ground, err error) {
	g = &Ground{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Stop())
		}
	}()
	if g.Self, err = os.Executable(); err != nil {
		return g, fmt.Errorf("find this program: %w", err)
	}
	if g.dir, err = os.MkdirTemp("", "rollbackd-bench-"); err != nil {
		return g, fmt.Errorf("make a folder for the binary: %w", err)
	}
	if g.module, err = findModule(ctx); err != nil {
		return g, err
	}
	if len(o.Builds) == 0 {
		o.Builds = []string{g.module}
	}
	for _, name := range o.Builds {
		b, err := g.build(ctx, name)
		g.Builds = append(g.Builds, b)
		if err != nil {
			return g, err
		}
	}
	g.service = startService()
	database := databaseOptions
	if o.Statements {
		database = append(database[:len(database):len(database)], "--performance-schema=ON",
			"--performance-schema-instrument=statement/%=ON", "--performance-schema-consumer-statements-digest=ON")
	}
	if g.Stack, err = stack.Start(ctx, stack.Options{
		RabbitMQConfig: brokerOptions, MySQLArgs: database, Log: o.Log,
	}); err != nil {
		return g, err
	}
	url, err := redis.ParseURL(g.Stack.Redis.URL())
	if err != nil {
		return g, fmt.Errorf("read redis's URL: %w", err)
	}
	g.redis = redis.NewClient(url)
	if err := g.connect(); err != nil {
		return g, err
	}
	return g, g.makeNumbers(ctx)
}

// Stop stops the servers and removes all data.
func (g *Ground) Stop() error {
	var errs []error
	if g.service != nil {
		g.service.Close()
	}
	if g.amqp != nil {
		_ = g.amqp.Close() // the server goes with its data
	}
	if g.redis != nil {
		_ = g.redis.Close()
	}
	if g.Stack != nil {
		errs = append(errs, g.Stack.Stop())
	}
	for _, b := range g.Builds {
		errs = append(errs, g.removeWorktree(b))
	}
	return errors.Join(append(errs, os.RemoveAll(g.dir))...)
}

// ErrLate says that something did not come about in its time.
var ErrLate = errors.New("it is late")

// Until asks again and again until the answer is yes, for so long at most.
func Until(ctx context.Context, what string, patience time.Duration, there func() (bool, error)) error {
	const step = 50 * time.Millisecond
	for began := time.Now(); ; {
		ok, err := there()
		if ok || err != nil {
			return err
		}
		if time.Since(began) > patience {
			return fmt.Errorf("until %s: %w: not within %v", what, ErrLate, patience)
		}
		if err := wait.For(ctx, step); err != nil {
			return err
		}
	}
}

// Field is one schema with the product's tables, and the one queue. Rounds follow each other on a field, each sown
// anew.
type Field struct {
	Name  string
	DB    *sql.DB
	DSN   string
	Build Build // whose tables they are, and who works here

	ground    *Ground
	sown      sown
	published atomic.Int64 // of this round
}

// Field makes a schema and lets a build migrate it.
func (g *Ground) Field(ctx context.Context, name string, b Build) (*Field, error) {
	server, err := g.open("")
	if err != nil {
		return nil, err
	}
	err = server.exec(ctx, "CREATE DATABASE IF NOT EXISTS "+name+" DEFAULT CHARACTER SET utf8mb4")
	if err := errors.Join(err, server.Close()); err != nil {
		return nil, err
	}
	f, err := g.open(name)
	if err != nil {
		return nil, err
	}
	f.Build = b
	if err := f.migrate(ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// open connects to a schema, or to the server only.
func (g *Ground) open(schema string) (*Field, error) {
	cfg, err := mysql.ParseDSN(g.Stack.MySQL.URL())
	if err != nil {
		return nil, fmt.Errorf("read the server's DSN: %w", err)
	}
	cfg.InterpolateParams, cfg.DBName, cfg.Logger = true, schema, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("open mysql: %w", err)
	}
	return &Field{Name: schema, DB: sql.OpenDB(connector), DSN: cfg.FormatDSN(), ground: g}, nil
}

// Close lets go of the schema's connections.
func (f *Field) Close() error { return f.DB.Close() }

// Environ is the product's environment on this field, and the rivals'. extra are further settings, NAME=value without
// the prefix; a later one outdoes an earlier one.
func (f *Field) Environ(extra ...string) []string {
	s := f.ground.Stack
	all := append([]string{
		"AMQP_URL=" + s.RabbitMQ.URL(), "MYSQL_DSN=" + f.DSN, "REDIS_URL=" + s.Redis.URL(),
		"HTTP_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
	}, append(f.handlerSettings(), extra...)...)
	if f.sown.Delays != "" {
		all = append(all, "RETRY_DELAYS="+f.sown.Delays)
	}
	env := make([]string, len(all))
	for i, setting := range all {
		env[i] = "ROLLBACKD_" + setting
	}
	return env
}

// migrate makes tables and queues as every user does.
func (f *Field) migrate(ctx context.Context) error {
	_, err := program.Run(ctx, f.Build.Binary, f.Environ(), "migrate")
	return err
}
