package ground

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/poll"
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
	Ctx    context.Context // ends when the run is cut short
	Stack  *stack.Stack
	Builds []Build // of the product
	Self   string  // this program, which is the rivals

	dir     string
	module  string // the product's folder
	service *service
	amqp    *amqp.Connection
	redis   *redis.Client
	queues  []string // of the round
	mains   []string // of them the main queues
}

// Start builds the product, starts the servers and makes the table of numbers that seeding reads.
func Start(ctx context.Context, o Options) *Ground {
	g := &Ground{Ctx: ctx}
	if err := must.Catch(func() { g.start(o) }); err != nil {
		must.OK(errors.Join(err, g.Stop()))
	}
	return g
}

func (g *Ground) start(o Options) {
	g.Self = must.Get(os.Executable())
	g.dir = must.Get(os.MkdirTemp("", "rollbackd-bench-"))
	g.module = must.Get(program.Module(g.Ctx))
	if len(o.Builds) == 0 {
		o.Builds = []string{g.module}
	}
	for _, name := range o.Builds {
		g.build(name)
	}
	g.service = startService()
	database := databaseOptions
	if o.Statements {
		database = append(database[:len(database):len(database)], "--performance-schema=ON",
			"--performance-schema-instrument=statement/%=ON", "--performance-schema-consumer-statements-digest=ON")
	}
	g.Stack = must.Get(stack.Start(g.Ctx, stack.Options{
		RabbitMQConfig: brokerOptions, MySQLArgs: database, Log: o.Log,
	}))
	g.redis = redis.NewClient(must.Get(redis.ParseURL(g.Stack.Redis.URL())))
	g.connect()
	g.makeNumbers()
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
		if b.worktree {
			_, err := g.git("worktree", "remove", "--force", b.folder)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(g.dir))...)
}

// Within asks again and again until the answer is yes, for so long at most, and says whether it was.
func (g *Ground) Within(patience time.Duration, there func() bool) bool {
	ok := poll.During(g.Ctx, patience, 50*time.Millisecond, there)
	must.OK(context.Cause(g.Ctx))
	return ok
}

// Until stops whoever waits in vain.
func (g *Ground) Until(what string, patience time.Duration, there func() bool) {
	if !g.Within(patience, there) {
		must.OK(fmt.Errorf("until %s: not within %v", what, patience))
	}
}

// Rest lets time pass.
func (g *Ground) Rest(d time.Duration) { must.OK(wait.For(g.Ctx, d)) }

// Field is one schema with the product's tables, and the one queue. Rounds follow each other on a field, each sown
// anew.
type Field struct {
	DB    *sql.DB
	DSN   string
	Build Build // whose tables they are, and who works here

	ground    *Ground
	sown      sown
	published atomic.Int64 // of this round
}

// Field makes a schema and lets a build migrate it.
func (g *Ground) Field(name string, b Build) *Field {
	server := g.open("")
	defer server.DB.Close()
	server.exec("CREATE DATABASE IF NOT EXISTS " + name + " DEFAULT CHARACTER SET utf8mb4")
	f := g.open(name)
	f.Build = b
	f.migrate()
	return f
}

// open connects to a schema, or to the server only.
func (g *Ground) open(schema string) *Field {
	cfg := must.Get(mysql.ParseDSN(g.Stack.MySQL.URL()))
	cfg.InterpolateParams, cfg.DBName = true, schema
	return &Field{DB: stack.OpenMySQL(cfg), DSN: cfg.FormatDSN(), ground: g}
}

// Environ is the product's environment on this field, and the rivals'. extra are further settings, NAME=value without
// the prefix; a later one outdoes an earlier one.
func (f *Field) Environ(extra ...string) []string {
	s := f.ground.Stack
	all := append([]string{
		"AMQP_URL=" + s.RabbitMQ.URL(), "MYSQL_DSN=" + f.DSN, "REDIS_URL=" + s.Redis.URL(),
		"HTTP_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
	}, slices.Concat(f.handlerSettings(), f.sown.severalQueues(), extra)...)
	if f.sown.Delays != "" {
		all = append(all, "RETRY_DELAYS="+f.sown.Delays)
	}
	for i, setting := range all {
		all[i] = "ROLLBACKD_" + setting
	}
	return all
}

// migrate makes tables and queues as every user does.
func (f *Field) migrate(settings ...string) {
	must.Get(program.Run(f.ground.Ctx, f.Build.Binary, f.Environ(settings...), "migrate"))
}

// Each calls see for each row of a query with two columns.
func (f *Field) Each(query string, see func(string, int64)) {
	must.Rows(f.ground.Ctx, f.DB, query, func(scan func(...any)) {
		var name string
		var n int64
		scan(&name, &n)
		see(name, n)
	})
}

func (f *Field) exec(statements ...string) { must.Exec(f.ground.Ctx, f.DB, statements...) }

// value is the one value that a query finds.
func value[T any](f *Field, query string, args ...any) T {
	return must.Value[T](f.ground.Ctx, f.DB, query, args...)
}
