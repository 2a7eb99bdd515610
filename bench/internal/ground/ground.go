// Package ground is what every contestant runs on: private servers, a schema, a queue with a backlog, and the check
// that nothing was lost or done twice. All contestants get the same servers, the same tables, the same queue and the
// same messages; what they do with them is not known here.
package ground

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// databaseOptions hold for everybody. The buffer pool holds all rows, as a production server's holds its hot ones, and
// the redo log is large enough that no round is spent on a forced checkpoint. Durability stays as package stack sets
// it: innodb_flush_log_at_trx_commit=1. A loose option is passed over by a server that does not know it: MariaDB has
// the one for the redo log, MySQL 9 only the other.
var databaseOptions = []string{"--innodb-buffer-pool-size=4G", "--loose-innodb-log-file-size=1G",
	"--loose-innodb-redo-log-capacity=1G"}

// accountOfStatements lets the database time its statements, which costs a few percent.
var accountOfStatements = []string{"--performance-schema=ON", "--performance-schema-instrument=statement/%=ON",
	"--performance-schema-consumer-statements-digest=ON"}

// brokerOptions keep the memory alarm, which blocks publishers, away from a backlog of a million.
const brokerOptions = "vm_memory_high_watermark.absolute = 6GB"

// Options say what to start.
type Options struct {
	Statements bool // the database accounts for its statements
	// Builds are those of the product: each a folder with its source, a binary, or a revision of git. None means the one
	// that this module uses.
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
	redis   *redis.Client
	hosts   int      // virtual hosts so far; the last one is the round's
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
		database = slices.Concat(database, accountOfStatements)
	}
	g.Stack = must.Get(stack.Start(g.Ctx, stack.Options{
		RabbitMQConfig: brokerOptions, MySQLArgs: database, Log: o.Log,
	}))
	g.redis = redis.NewClient(must.Get(redis.ParseURL(g.Stack.Redis.URL())))
	g.makeNumbers()
}

// Stop stops the servers and removes all data.
func (g *Ground) Stop() (err error) {
	if g.service != nil {
		g.service.Close()
	}
	if g.Stack != nil {
		err = g.Stack.Stop()
	}
	return errors.Join(err, os.RemoveAll(g.dir))
}

// Build is one build of the product.
type Build struct {
	Binary string
	folder string // of its source, if there is one
}

// Sum is the SHA-256 of the binary.
func (b Build) Sum() string {
	sum := sha256.Sum256(must.Get(os.ReadFile(b.Binary)))
	return hex.EncodeToString(sum[:])
}

const mainFolder = "cmd/consumer"

// build makes the next of the ground's builds. A name that is relative is looked for here and in the product's folder,
// and in git only if nothing is there; a revision is cloned.
//
// A binary is compiled with its own go.mod, not with this module's: other versions of libraries would be another
// product. The commit does not stand in it, so that the same code is the same binary.
func (g *Ground) build(name string) {
	var b Build
	here := filepath.Join(g.dir, fmt.Sprint(len(g.Builds)))
	for _, path := range []string{name, filepath.Join(g.module, name)} {
		path := must.Get(filepath.Abs(path))
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			b.Binary = path
			break
		}
		if info, err := os.Stat(filepath.Join(path, mainFolder)); err == nil && info.IsDir() {
			b.folder = path
			break
		}
	}
	if b.Binary == "" && b.folder == "" {
		commit, err := g.output(g.module, "git", "rev-parse", "--verify", "--quiet", "--end-of-options", name+"^{commit}")
		must.OK(err, fmt.Sprintf("%q is no folder with %s, no program and no revision of git", name, mainFolder))
		b.folder = here + "-source"
		must.Get(g.output(g.module, "git", "clone", "-q", "--shared", "--no-checkout", ".", b.folder))
		must.Get(g.output(b.folder, "git", "checkout", "-q", "--detach", commit))
	}
	if b.Binary == "" {
		b.Binary = filepath.Join(here, "consumer")
		must.Get(g.output(b.folder, "go", "build", "-trimpath", "-buildvcs=false", "-o", b.Binary, "./"+mainFolder))
	}
	g.Builds = append(g.Builds, b)
}

// output is what a program prints that runs in a folder.
func (g *Ground) output(dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(g.Ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s %s: %w\n%s", name, args[0], err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
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

// Versions are the servers'.
func (g *Ground) Versions() map[string]string {
	f, conn := g.open(""), must.Get(amqp.Dial(g.Stack.RabbitMQ.URL()))
	defer f.DB.Close()
	defer conn.Close()
	return map[string]string{
		"mysql": value[string](f, "SELECT VERSION()"), "rabbitmq": fmt.Sprint(conn.Properties["version"]),
		"redis": must.Get(g.redis.InfoMap(g.Ctx, "server").Result())["Server"]["redis_version"],
	}
}

// Field is one schema with the product's tables, and the queues of the round. Rounds follow each other on a field, each
// sown anew.
type Field struct {
	DB    *sql.DB
	DSN   string
	Build Build  // whose tables they are, and who works here
	Sown  Sowing // the last one

	ground     *Ground
	before     oracle.Stock
	rowsBefore int64 // success rows
	grown      bool  // orders came in after the stock was read
	published  atomic.Int64
}

// Field makes a schema and lets a build migrate it.
func (g *Ground) Field(name string, b Build) *Field {
	server := g.open("")
	defer server.DB.Close()
	server.exec("CREATE DATABASE IF NOT EXISTS " + name + " DEFAULT CHARACTER SET utf8mb4")
	f := g.open(name)
	f.Build = b
	f.newQueues()
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
	all := slices.Concat([]string{
		"AMQP_URL=" + f.ground.amqpURL(), "MYSQL_DSN=" + f.DSN, "REDIS_URL=" + f.ground.Stack.Redis.URL(),
		"HTTP_ADDR=127.0.0.1:0", "LOG_FORMAT=json",
	}, f.handlerSettings(), f.Sown.severalQueues(), extra)
	if f.Sown.Delays != "" {
		all = append(all, "RETRY_DELAYS="+f.Sown.Delays)
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

// locks are what the kinds of lock need beside the servers that everybody has: so many of a kind, and the setting that
// names them. None: the lock stands on Redis, or beside the log.
var locks = map[string]struct {
	kind    stack.Kind
	servers int
	setting string
}{
	"redlock":   {stack.KindRedis, 3, "REDIS_URL="},
	"zookeeper": {stack.KindZooKeeper, 1, "ZOOKEEPER_URL="},
}

// WithLock starts what a kind of lock needs, or makes its tables, and ends it after do, which gets the settings that
// name it.
func (f *Field) WithLock(kind string, do func(settings []string)) {
	need := locks[kind]
	var settings, urls []string
	for range need.servers {
		s := must.Get(stack.Start(f.ground.Ctx, stack.Options{Only: []stack.Kind{need.kind}}))
		defer func() { must.OK(s.Stop()) }()
		urls = append(urls, cmp.Or(s.Redis, s.ZooKeeper).URL())
	}
	if kind != "" {
		settings = []string{"LOCK=" + kind}
	}
	if len(urls) > 0 {
		settings = append(settings, need.setting+strings.Join(urls, ","))
	} else if kind != "" {
		f.migrate(settings...)
	}
	do(settings)
}

// Blocked does something while everybody else is kept off the log's and the stock's tables.
func (f *Field) Blocked(do func()) {
	conn := must.Get(f.DB.Conn(f.ground.Ctx))
	defer conn.Close()
	exec := func(statement string) { must.Exec(context.WithoutCancel(f.ground.Ctx), conn, statement) }
	exec("LOCK TABLES consumer_log WRITE, stock WRITE, stock_reservation WRITE")
	defer exec("UNLOCK TABLES")
	do()
}

// Status reads some of MySQL's counters.
func (f *Field) Status(names ...string) map[string]float64 {
	values := map[string]float64{}
	f.Each("SHOW GLOBAL STATUS WHERE Variable_name IN ('"+strings.Join(names, "','")+"')",
		func(name string, n int64) { values[name] = float64(n) })
	if len(values) != len(names) {
		must.OK(fmt.Errorf("mysql tells %v, want %q", values, names))
	}
	return values
}

const statementsByKind = "performance_schema.events_statements_summary_by_digest"

// ForgetStatements begins the account of statements anew.
func (f *Field) ForgetStatements() { f.exec("TRUNCATE TABLE " + statementsByKind) }

// Statements calls see for the kinds of statement that took most time since, the dearest first. The seconds are what
// the server spent on each, waiting for locks and for the disk included.
func (f *Field) Statements(see func(text string, count, seconds float64)) {
	must.Rows(f.ground.Ctx, f.DB, "SELECT COALESCE(DIGEST_TEXT, ''), COUNT_STAR, SUM_TIMER_WAIT FROM "+statementsByKind+
		" WHERE SCHEMA_NAME = DATABASE() ORDER BY SUM_TIMER_WAIT DESC LIMIT 15", func(scan func(...any)) {
		var text string
		var count, picoseconds float64
		scan(&text, &count, &picoseconds)
		see(text, count, picoseconds/1e12)
	})
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
