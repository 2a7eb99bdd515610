// Command demo shows a shop's life in one minute: orders reserve stock, are cancelled, and their rollback messages,
// some of them twice and a few of them bad, give the stock back exactly once. `make demo` runs it, with the
// tables of the built-in handler; `make demo HANDLER=sql` with those of the classic algorithm, for which the daemon
// runs the statements of an example; `make demo OUTBOX=on` shows the whole chain from the order's commit on, by chaos
// with two kinds of faults; `make demo HOLD=1` stays up after the report, for a person to look and mend.
//
// It does what a user does, with the real binary (migrate, run, dlq replay), on private servers with their data in a
// temporary folder; it leaves no process running. It exits with 1 when the stock is not what it must be. What belongs
// here: the story and its report. What does not: anything a test would want besides.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/chaos"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills at once; the servers die with this process
	if err := command(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// command tells the story that is wanted. Whatever happens, what was started is stopped and what was written is
// removed.
func command(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	hold := flags.Bool("hold", false, "stay up after the report")
	outbox := flags.Bool("outbox", false, "the story of orders whose messages go through the outbox")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d := &demo{ctx: ctx, out: out, classic: flags.Arg(0) == config.HandlerSQL}
	if handler := flags.Arg(0); handler != "" && handler != config.HandlerStock && !d.classic {
		return fmt.Errorf("there is no demo of %q: the handlers are %s and %s", handler, config.HandlerStock,
			config.HandlerSQL)
	}
	err := must.Catch(func() {
		if *outbox {
			d.chain()
			return
		}
		d.story()
		if *hold {
			d.hold() // a person's turn
		}
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // whatever the interrupted step made of it
	}
	return errors.Join(err, d.end())
}

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

const (
	// retryDelays are short, so that an unknown order's five attempts take two seconds and not the three minutes of a
	// production.
	retryDelays = "200ms,400ms,600ms,800ms"
	database    = "rollbackd_demo"
	// example is the folder of the classic statements, from the repository's root, where make runs.
	example = "deploy/examples/sql/overtaking"
)

// classicTables stand behind an order with a state and a row of stock for each of the goods, those of an example, whose
// statements the daemon runs. They show the shop and the oracle what these write and read, under the names that they
// know. Who released an order stands nowhere in the classic tables; it must have been the message of that order.
var classicTables = []string{
	"DELETE FROM tb_order", "DELETE FROM tb_stock",
	"CREATE VIEW stock AS SELECT goods_id AS sku_id, amount FROM tb_stock",
	`CREATE TABLE stock_reservation (
	order_sn VARCHAR(64) NOT NULL, sku_id BIGINT NOT NULL, quantity INT NOT NULL, status TINYINT NOT NULL,
	rollback_tag VARBINARY(64), rollback_key VARBINARY(255), PRIMARY KEY (order_sn, sku_id)
) ENGINE=InnoDB`,
	`CREATE TRIGGER demo_reserved AFTER INSERT ON stock_reservation FOR EACH ROW
	INSERT IGNORE INTO tb_order VALUES (NEW.order_sn, 'cancelling')`,
}

// classicReleased takes over what has become of the orders. It is no trigger, because statements for a table that has
// one are not joined.
const classicReleased = `UPDATE stock_reservation AS r JOIN tb_order AS o USING (order_sn) SET r.status = 2,
	rollback_tag = 'stock.rollback', rollback_key = CONCAT('rollback-', o.order_sn)
	WHERE r.status = 1 AND o.status = 'cancelled'`

// demo is what the steps hand on to each other, in their order.
type demo struct {
	ctx     context.Context
	out     io.Writer
	classic bool // the tables are those of the classic algorithm

	dir    string // everything is below it
	stack  *stack.Stack
	binary string
	env    []string // of the binary
	cfg    config.Config
	db     *sql.DB
	daemon *program.Process
	log    program.Log // the daemon's

	rng     *rand.Rand
	route   shop.Route
	oracle  oracle.World
	ledger  *oracle.Ledger
	initial oracle.Stock // before any reservation

	published, absorbed, perSecond int
	applied                        int            // rows that say success
	dead                           map[string]int // and those that are dead, by reason
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// begin makes the folder and the binary.
func (d *demo) begin() {
	d.dir = must.Get(os.MkdirTemp("", "rollbackd-demo-"))
	must.OK(os.Setenv("TMPDIR", d.dir)) // the servers' folders go below ours
	d.say("folder       %s, removed at the end", d.dir)
	d.binary = must.Get(program.Build(d.ctx, d.dir))
}

// chain tells of orders that are paid, cancelled or left to their timeout, and whose messages go through the outbox,
// while relays and daemons are killed.
func (d *demo) chain() {
	d.begin()
	must.OK(chaos.Run(d.ctx, chaos.Options{
		Binary: d.binary, LogDir: d.dir, Seed: 1, Phase: chaos.Phases()[0], Duration: 30 * time.Second, Rate: 200, Out: d.out,
		Only: []string{"daemon kill -9", "relay kill -9"},
	}))
	d.say("\nevery order is paid for or has given its goods back, and each release was told: exactly once")
}

// story is told from top to bottom.
func (d *demo) story() {
	d.say("rollbackd: %s cancelled orders give their stock back, each exactly once\n", number(orders))
	d.begin()
	d.open()
	must.OK(shop.Stock(d.ctx, d.db, skus, amount))
	d.initial = d.stock()
	known, unknown := shop.Orders(d.rng, "order", orders, skus), shop.Orders(d.rng, "late", unknownOrders, skus)
	d.reserve(known)
	d.say("reserve      %s orders have taken %s pieces of %d skus", number(orders), number(d.stock().Sum().Reserved), skus)
	d.startDaemon()
	d.publish(known, unknown)
	d.ended(orders, malformed+unknownOrders+conflicts) // the unknown orders take all their attempts
	d.absorbed = must.Get(d.daemon.Metrics(d.ctx)).Deliveries("duplicate")
	d.report()
	d.replay(unknown)
	d.stopDaemon()
	verdict := must.Get(d.oracle.Check(d.ctx, d.initial, d.ledger, oracle.Allowance{}))
	d.say("\noracle: %+v", verdict.Counters)
	must.OK(verdict.Err())
}

// open starts the servers, and makes the schema, the settings and what the demo itself uses of them.
func (d *demo) open() {
	d.stack = must.Get(stack.Start(d.ctx, stack.Options{}))
	d.say("servers      of our own: RabbitMQ on %s, MariaDB on %s, Redis on %s", d.stack.RabbitMQ.Addr(),
		d.stack.MySQL.Addr(), d.stack.Redis.Addr())
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
	d.db = stack.OpenMySQL(server)
	if d.classic {
		d.env = append(d.env, config.Prefix+"HANDLER="+config.HandlerSQL,
			config.Prefix+"SQL_FILE="+filepath.Join(example, "handler.sql"))
		text := must.Get(os.ReadFile(filepath.Join(example, "tables.sql")))
		must.Exec(d.ctx, d.db, strings.Split(strings.TrimSuffix(strings.TrimSpace(string(text)), ";"), ";\n")...)
		must.Exec(d.ctx, d.db, classicTables...)
	}
	must.Get(program.Run(d.ctx, d.binary, d.env, "migrate"))
	d.say("migrate      tables, exchange and queues are made")
	var err error
	d.cfg, _, err = config.Load(d.env)
	must.OK(err, "settings of the demo")
	d.rng = rand.New(rand.NewPCG(1, 1)) // the same shop each time
	d.route = shop.Route{Exchange: d.cfg.Exchange, Key: d.cfg.RoutingKeys[0]}
	d.oracle = oracle.World{
		DB: d.db, LogTable: d.cfg.LogTable, Group: d.cfg.Group, KeyFrom: d.cfg.KeyFrom,
		AMQPURL: d.cfg.AMQPURLs[0], Queue: d.cfg.Queue, Delays: d.cfg.RetryDelays,
	}
	d.ledger = must.Get(d.oracle.NewLedger())
}

func (d *demo) stock() oracle.Stock {
	if d.classic {
		must.Exec(d.ctx, d.db, classicReleased)
	}
	return must.Get(oracle.ReadStock(d.ctx, d.db))
}

func (d *demo) reserve(orders []shop.Order) { must.OK(shop.SeedReserved(d.ctx, d.db, orders)) }

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

// publish publishes everything: the good messages, a fifth of them twice and in any order; among them the malformed and
// the unknown ones; at last, when theirs have been applied for sure, the ones whose key another body has.
func (d *demo) publish(known, unknown []shop.Order) {
	sent := shop.Repeat(d.rng, d.route.Rollbacks(known), duplicates)
	for i := range malformed {
		cut := d.route.Message(fmt.Sprintf("malformed-%d", i), []byte(`{"order_sn":"order-000001","items":[{"sku_id":1}]}`))
		sent = append(sent, oracle.Sent{Publishing: cut, Fate: oracle.ToDie(dedup.ReasonMalformed)})
	}
	sent = append(sent, d.dying(unknown)...)
	d.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	d.say("publish      %s messages, %.0f %% of the good ones twice, %d of them bad; the daemon works meanwhile\n",
		number(len(sent)+conflicts), 100*duplicates, malformed+unknownOrders+conflicts)
	began, shown, confirmed := time.Now(), time.Now(), 0
	applied := func() int { // with a line each second
		m := must.Get(d.daemon.Metrics(d.ctx))
		if n := m.Deliveries("applied"); n < orders && time.Since(shown) < time.Second {
			return n
		}
		shown = time.Now()
		d.say("%5.1f s   published %s   applied %s   duplicates %s   dead letters %d   %s/s", time.Since(began).Seconds(),
			number(confirmed), number(m.Deliveries("applied")), number(m.Deliveries("duplicate")),
			m.Deliveries("dead_lettered"), number(int(float64(m.Settled())/time.Since(began).Seconds())))
		return m.Deliveries("applied")
	}
	d.send(sent, func(n int) { confirmed = n; applied() })
	d.until("the orders to be applied", time.Minute, 50*time.Millisecond, func() bool { return applied() == orders })
	d.perSecond = int(float64(len(sent)) / time.Since(began).Seconds())
	var late []oracle.Sent
	for _, o := range known[:conflicts] { // another service says something else under the same key
		other := d.route.Message(o.Key(), bytes.Replace(o.Body(), []byte(`"reason":"`), []byte(`"reason":"no `), 1))
		late = append(late, oracle.Sent{Publishing: other, Fate: oracle.ToDie(dedup.ReasonConflict)})
	}
	d.send(late, nil)
	d.published = len(sent) + conflicts
}

// dying are messages of orders that nobody has reserved yet.
func (d *demo) dying(orders []shop.Order) []oracle.Sent {
	sent := d.route.Rollbacks(orders)
	for i := range sent {
		sent[i].Fate = oracle.ToDie(dedup.ReasonExhausted)
	}
	return sent
}

// send publishes messages and waits until they are confirmed.
func (d *demo) send(sent []oracle.Sent, progress func(int)) {
	p := rabbit.NewPublisher(rabbit.Config{URLs: d.cfg.AMQPURLs, Name: rabbit.ConnectionName("demo")})
	defer func() { _ = p.Close(d.ctx) }() // everything is confirmed by then
	must.OK(shop.Publish(d.ctx, p, d.ledger, sent, progress))
}

// replay makes the unknown orders known, whose reservations had only been late, and replays their letters.
func (d *demo) replay(unknown []shop.Order) {
	d.reserve(unknown)
	d.say("\nthe %d unknown orders become known: they reserve %s pieces; now `rollbackd dlq replay --reason exhausted`",
		len(unknown), number(d.stock().Sum().Reserved))
	text := must.Get(program.Run(d.ctx, d.binary, d.env, "dlq", "replay", "--reason", string(dedup.ReasonExhausted),
		"--output", "json"))
	var result struct{ Replayed int }
	must.OK(json.Unmarshal([]byte(text), &result), "read what the replay says: ", text)
	if result.Replayed != len(unknown) {
		must.OK(fmt.Errorf("%d letters replayed, want %d:\n%s", result.Replayed, len(unknown), text))
	}
	for _, o := range unknown {
		d.ledger.Expect(oracle.ToBeApplied(), dedup.Identity{Group: d.cfg.Group, Tag: d.route.Key, Key: o.Key()})
	}
	d.ended(orders+unknownOrders, malformed+conflicts)
	d.report()
}

// ended waits until so many rows say success and so many say dead.
func (d *demo) ended(applied, dead int) {
	d.until("the last message to end", 30*time.Second, 100*time.Millisecond, func() bool {
		d.applied, d.dead = 0, map[string]int{}
		must.Rows(d.ctx, d.db, "SELECT consumer_status, COALESCE(reason, ''), COUNT(*) FROM "+d.cfg.LogTable+
			" GROUP BY 1, 2", func(scan func(...any)) {
			var status dedup.Status
			var reason string
			var n int
			scan(&status, &reason, &n)
			switch status {
			case dedup.Success:
				d.applied = n
			case dedup.Dead:
				d.dead[reason] = n
			}
		})
		return d.applied == applied && sum(d.dead) == dead
	})
}

// report tells what became of the messages, asked of MySQL and not of the daemon.
func (d *demo) report() {
	d.say("")
	stock := d.stock()
	d.table(stock.Sum().Amount)
	for sku, was := range d.initial {
		if is := stock[sku]; is.Amount != was.Amount {
			must.OK(fmt.Errorf("the stock is not what it must be: sku %d has %d, want %d", sku, is.Amount, was.Amount))
		}
	}
	d.say("\nstock: every sku as expected")
}

// table is the report's. Its form is in testdata.
func (d *demo) table(stock int64) {
	t := tabwriter.NewWriter(d.out, 0, 0, 3, ' ', tabwriter.AlignRight)
	line := func(what string, n int) { fmt.Fprintf(t, "%s\t%s\t\n", what, number(n)) }
	line("orders", orders)
	line("messages published", d.published)
	line("applied", d.applied)
	line("duplicates absorbed", d.absorbed)
	line("dead letters", sum(d.dead))
	for _, reason := range slices.Sorted(maps.Keys(d.dead)) {
		line(reason, d.dead[reason])
	}
	line("stock", int(stock))
	line("stock expected", int(d.initial.Sum().Amount))
	line("messages per second", d.perSecond)
	must.OK(t.Flush())
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// number writes n with commas between the thousands.
func number[N int | int64](n N) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// until asks yes every so often.
func (d *demo) until(what string, patience, pause time.Duration, yes func() bool) {
	ok := poll.During(d.ctx, patience, pause, func() bool {
		select {
		case <-d.daemon.Exited():
			must.OK(fmt.Errorf("the daemon has ended; its last words:\n%s", d.log.Tail(10)))
		default:
		}
		return yes()
	})
	if !ok {
		must.OK(fmt.Errorf("wait for %s: it took over %v", what, patience))
	}
}

// end stops what runs and removes what was written.
func (d *demo) end() error {
	d.ctx = context.WithoutCancel(d.ctx)
	var errs []error
	if d.daemon != nil {
		errs = append(errs, must.Catch(d.stopDaemon))
	}
	if d.db != nil {
		errs = append(errs, d.db.Close())
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
	if code := must.Get(daemon.Stop(ctx)); code != 0 {
		must.OK(fmt.Errorf("the daemon exited with %d instead of draining:\n%s", code, d.log.Tail(10)))
	}
}

// brokenOrders are those that a person finds, mends and replays by hand while the demo holds.
const brokenOrders = 3

// hold stays up after the report, with a daemon and with dead letters for a person, until it is interrupted, which is
// then no failure.
func (d *demo) hold() {
	d.startDaemon()
	broken := shop.Orders(d.rng, "broken", brokenOrders, skus)
	d.send(d.dying(broken), nil)
	d.ended(orders+unknownOrders, malformed+conflicts+brokenOrders)
	addr := must.Get(d.daemon.Addr(d.ctx))
	commands, asked := d.leaveCommands(addr)
	d.say(`
It stays up until Ctrl-C. The stock of the order %[1]s has not come back. Why?

  page         http://%[2]s/ asks for no token from this machine
  api          curl -s 'http://%[2]s/api/v1/order?sn=%[1]s' | jq .      # docs/api.md says how it goes on
  commands     . %[3]s      # rollbackd then works in this shell
               rollbackd dlq list
               rollbackd log explain --order %[1]s
  mend         rm %[4]s      # the %[5]d orders are written, as if their service had been late
  replay       rollbackd dlq replay --reason %[6]s
`, broken[0].SN, addr, commands, asked, len(broken), dedup.ReasonExhausted)
	d.mendWhenAsked(broken, asked)
}

// leaveCommands writes what a person's shell sources, with the daemon's address, and the file whose removal mends the
// orders.
func (d *demo) leaveCommands(addr string) (commands, asked string) {
	commands, asked = filepath.Join(d.dir, "env.sh"), filepath.Join(d.dir, "broken")
	var b strings.Builder
	for _, entry := range d.env {
		name, value, _ := strings.Cut(entry, "=")
		if name == config.Prefix+"HTTP_ADDR" {
			value = addr // the settings ask for any free port: doctor and probe look for the daemon where it is
		}
		fmt.Fprintf(&b, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
	fmt.Fprintf(&b, "rollbackd() { %s \"$@\"; }\n", d.binary)
	must.OK(os.WriteFile(commands, []byte(b.String()), 0o600))
	must.OK(os.WriteFile(asked, nil, 0o600))
	return commands, asked
}

// mendWhenAsked waits for the end, and writes the broken orders when their file is removed.
func (d *demo) mendWhenAsked(broken []shop.Order, asked string) {
	const years = 1 << 30 * time.Second
	err := must.Catch(func() {
		d.until("their end", years, 200*time.Millisecond, func() bool { _, err := os.Stat(asked); return err != nil })
		d.reserve(broken)
		d.say("mended: now their letters can be replayed")
		d.until("the end", years, time.Second, func() bool { return false })
	})
	if d.ctx.Err() == nil {
		must.OK(err)
	}
}
