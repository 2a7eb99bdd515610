package daemon_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// shards are several main queues behind one exchange, as docs/scaling.md describes them: producers publish to an
// exchange that hashes the order and passes each message on to the exchange of one of the queues.
type shards struct{ w *world }

const orderHeader = "order_sn"

// queuesOfExample is how many queues deploy/examples/queues is for.
const queuesOfExample = 4

// choose makes the settings those of the daemons of one shard.
func (s *shards) choose(i int) {
	s.w.set("EXCHANGE", fmt.Sprintf("stock.%d", i), "QUEUE", fmt.Sprintf("stock.rollback.%d", i))
}

func (s *shards) start(i int) *program.Process {
	s.choose(i)
	return s.w.start()
}

// message is about the order, whose number is hashed.
func (s *shards) message(key string, o shop.Order) oracle.Sent {
	p := s.w.route.Message(key, o.Body())
	p.Message.Headers = rabbit.Table{orderHeader: o.SN}
	return oracle.Sent{Publishing: p, Fate: oracle.ToBeApplied(), Order: o.SN}
}

// Given four queues behind an exchange that hashes the order, each with daemons of its own, when two messages about
// each order come, all of them twice, some before their order has reserved, some that name no order to the exchange,
// and a daemon is killed in the middle,
// then each order's goods are back once, and all messages of an order have gone through one queue.
func TestFourQueuesBehindAHashAreOneShop(t *testing.T) {
	const ordinary, late, unnamed = 300, 40, 10
	const messages = 2*(ordinary+late) + unnamed
	w := emptyWorld(t, "BATCH_SIZE", "100", "LANES", "2", "LOCK_TTL", "1s", "HANDLER_TIMEOUT", "3s", "LEASE", "5s",
		"RETRY_DELAYS", "200ms,500ms,1s,2s,5s", "MAX_ATTEMPTS", "6")
	w.route.Exchange = "stock.by-order"
	s := &shards{w}
	audits := make([]string, queuesOfExample) // of each shard: everything that its exchange has passed on
	for i := range audits {                   // all of them on one database
		s.choose(i)
		if i == 0 {
			w.migrate()
		} else {
			w.declare(w.config())
		}
		audits[i] = fmt.Sprintf("audit.%d", i)
		w.broker.DeclareQueue(audits[i], nil)
		w.broker.Bind(audits[i], w.route.Key, w.env["EXCHANGE"])
	}
	w.broker.Import(string(require.Get(os.ReadFile("../../deploy/examples/queues/rabbitmq-definitions.json"))(t)))
	orders := w.open(ordinary + unnamed)
	nameless := orders[ordinary:]
	lateOnes := shop.Orders(w.rng, "late", late, skus)
	var sent []oracle.Sent
	for _, o := range slices.Concat(orders[:ordinary], lateOnes) {
		first, second := s.message(o.Key(), o), s.message("again-"+o.SN, o)
		sent = append(sent, first, second, first, second)
	}
	for _, o := range nameless {
		sent = append(sent, w.route.Rollback(o))
	}
	w.mixed(sent)

	killed := s.start(0)
	// It looks only while the daemon is frozen: however slow this machine is, the daemon gets no further meanwhile.
	w.eventually("the daemon is in the middle of its work", func() bool {
		w.signal(killed, syscall.SIGSTOP)
		if w.rows(dedup.Success) >= 50 && w.broker.Unacked(w.config().Queue) > 0 {
			return true
		}
		w.signal(killed, syscall.SIGCONT)
		return false
	})
	w.kill(killed)
	fleet := []*program.Process{s.start(0)} // two daemons on the first queue
	for i := range queuesOfExample {
		fleet = append(fleet, s.start(i))
	}
	w.eventually("orders that have not reserved have failed", func() bool { return w.rows(dedup.Failed) > 0 })
	require.OK(t, shop.SeedReserved(t.Context(), w.db, lateOnes))
	for i := range queuesOfExample {
		s.choose(i)
		w.ended(messages)
	}
	w.stop(fleet...)

	s.choose(0)
	w.oracle.Queue = w.env["QUEUE"]
	w.judged(messages, 0, oracle.Allowance{Attempts: 2})
	const named = ordinary + late + 1 // messages that name no order are as those of one
	queueOf := map[string]int{}
	for i, audit := range audits {
		for _, d := range w.broker.GetAll(audit) {
			order, _ := d.Headers[orderHeader].(string)
			earlier, seen := queueOf[order]
			require.That(t, !seen || earlier == i, "order %q has messages on queue %d and on queue %d", order, earlier, i)
			queueOf[order] = i
		}
	}
	assert.Is(t, len(queueOf), named, "orders were passed on")
	share := map[int]int{}
	for _, i := range queueOf {
		share[i]++
	}
	t.Logf("orders on each queue: %v", share)
	for i := range audits {
		assert.AtLeast(t, share[i], named/len(audits)/2, "queue %d has of %d orders", i, named)
	}
}

// Given a quorum queue of the shop's own, with arguments of its own and fed by an exchange of its own, when a daemon
// takes it as it is, then messages are applied, retried and dead-lettered as ever, and the queue is as it was.
func TestAQueueThatIsTakenAsItIsIsConsumed(t *testing.T) {
	w := emptyWorld(t, "TOPOLOGY", "check", "MAX_ATTEMPTS", "2", "RETRY_DELAYS", "100ms,200ms")
	queue := w.env["QUEUE"]
	w.broker.DeclareExchange(w.route.Exchange, "direct")
	w.broker.DeclareQueue(queue, map[string]any{"x-queue-type": "quorum", "x-max-length": int32(100_000)})
	w.broker.Bind(queue, w.route.Key, w.route.Exchange)
	w.broker.Policy("rollbackd", queue, map[string]any{
		"dead-letter-exchange": "", "dead-letter-routing-key": rabbit.BackstopQueue(queue),
		"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "delivery-limit": rabbit.DeliveryLimit,
	})
	w.migrate()
	orders := w.open(200)
	sent := w.route.Rollbacks(orders)
	never := w.route.Message("nobody", []byte(`{"order_sn":"nobody"}`))
	sent = append(sent, oracle.Sent{Publishing: never, Fate: oracle.ToDie(dedup.ReasonExhausted)})
	w.publish(append(sent, sent...)...)
	w.finish(len(orders), 1, oracle.Allowance{})
	if log := w.logs.String(); !strings.Contains(log, "not seen over AMQP") || !strings.Contains(log, "set_policy") {
		t.Error("the log does not say that the policy is not seen, and what it should be")
	}
}

// upgradeEnv asks for the test of two builds, whose older one is compiled for it: make test-upgrade.
const upgradeEnv = "ROLLBACKD_TEST_UPGRADE"

// former builds the program as it was at the commit that testdata/former-release names, the last before a migration.
func former(t *testing.T) string {
	t.Helper()
	if os.Getenv(upgradeEnv) == "" {
		t.Skipf("it compiles an older version of the program, and so runs only with %s=1: make test-upgrade", upgradeEnv)
	}
	text := require.Get(os.ReadFile("testdata/former-release"))(t)
	commit := strings.TrimSpace(string(text))
	in := func(dir, name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		require.That(t, err == nil, "%s %v: %v\n%s", name, args, err, out)
	}
	out, err := exec.CommandContext(t.Context(), "git", "cat-file", "-e", commit+"^{commit}").CombinedOutput()
	if err != nil {
		t.Skipf("this clone does not hold the commit %s of the former version (git fetch --unshallow): %s", commit, out)
	}
	dir := t.TempDir()
	source, archive := filepath.Join(dir, "source"), filepath.Join(dir, "source.tar")
	require.OK(t, os.Mkdir(source, 0o755))
	top := require.Get(filepath.Abs(filepath.Join("..", "..")))(t)
	in(top, "git", "archive", "-o", archive, commit)
	in(source, "tar", "-xf", archive)
	path := filepath.Join(dir, "former")
	in(source, "go", "build", "-buildvcs=false", "-o", path, "./cmd/consumer")
	return path
}

// Given a fleet of the former version at work, when the new version migrates beside it, runs beside it, is taken back,
// and comes again for good, while messages keep coming, then both have worked, every message takes effect once and only
// those are dead letters that nobody can read. Letters that one version has made are replayed by the other, when the
// orders have come that they lacked. The migration is one that changes the tables of the effect.
func TestTwoVersionsWorkSideBySideOverAMigration(t *testing.T) {
	old := former(t)
	const steps, each, some = 5, 1500, 20
	w := worldOf(t, "BATCH_SIZE", "50", "LANES", "2", "RETRY_DELAYS", "200ms,500ms", "MAX_ATTEMPTS", "3")
	does := func(path string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		require.Get(program.Run(ctx, path, w.environ(), args...))(t)
	}
	started := func(path string) *program.Process {
		t.Helper()
		return w.startProcess(program.Options{Path: path, Args: []string{"run"}, Env: w.environ(), Log: w.logs})
	}
	settled := func(p *program.Process) int { return w.metrics(p).Settled() }
	const columns = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()"

	// given
	does(old, "migrate")
	require.OK(t, oracle.Audit(t.Context(), w.db))
	orders := w.open(steps * each)
	early, late := shop.Orders(w.rng, "early", some, skus), shop.Orders(w.rng, "late", some, skus) // nobody knows them yet
	published := 0
	publish := func(more ...oracle.Sent) {
		t.Helper()
		part := orders[published*each : (published+1)*each]
		published++
		w.publish(shop.Repeat(w.rng, append(w.route.Rollbacks(part), more...), .1)...)
	}
	failing := func(unknown []shop.Order) []oracle.Sent {
		sent := w.route.Rollbacks(unknown)
		for _, o := range unknown {
			cut := w.route.Message("cut-"+o.SN, []byte(`{"order_sn":`))
			sent = append(sent, oracle.Sent{Publishing: cut, Fate: oracle.ToDie(dedup.ReasonMalformed)})
		}
		return sent
	}
	// replayed makes the orders known, and has all letters replayed by one of the versions.
	replayed := func(path string, unknown []shop.Order) {
		t.Helper()
		is(w, "messages are exhausted",
			w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND reason = 'exhausted'"), some)
		require.OK(t, shop.SeedReserved(t.Context(), w.db, unknown))
		does(path, "dlq", "replay", "--all", "--no-wait")
	}
	first := started(old)
	publish(failing(early)...)
	w.ended(each + 2*some)

	// when: the new one migrates while the old one works
	before := w.count(columns)
	publish()
	does(program.Shared(t), "migrate")
	if after := w.count(columns); after <= before {
		t.Fatalf("the migration changes nothing: %d columns before and %d after; name a newer commit's parent", before, after)
	}
	w.ended(2*each + 2*some)
	// side by side
	fresh := started(program.Shared(t))
	w.eventually("both consume", func() bool { return w.broker.Consumers(w.config().Queue) >= 4 })
	alone := settled(first)
	replayed(program.Shared(t), early)
	publish(failing(late)...)
	w.ended(3*each + 4*some)
	byOld, byNew := settled(first)-alone, settled(fresh)
	t.Logf("side by side the old version settled %d deliveries, the new one %d", byOld, byNew)
	assert.AtLeast(t, min(byOld, byNew), 1, "one of them did nothing: it settled")
	// back: the old one goes on alone on the new tables, also when it starts anew
	w.stop(fresh, first)
	first = started(old)
	replayed(old, late)
	publish()
	w.ended(4*each + 4*some)
	// for good
	fresh = started(program.Shared(t))
	publish()
	w.stop(first)
	w.ended(5*each + 4*some)
	w.stop(fresh)

	// then
	w.judged(steps*each+2*some, 2*some, oracle.Allowance{})
}

// Given a shop whose job goes over a table of cancelled orders, when the script of docs/adopting.md takes the job's
// place, is killed, fails and runs twice at once, then each order is given back once, and no row is marked that was not
// published.
func TestAJobOverATableIsBroughtOver(t *testing.T) {
	file := require.Get(filepath.Abs("../../deploy/examples/sql/classic/handler.sql"))(t)
	w := newWorld(t, "HANDLER", "sql", "SQL_FILE", file, "KEY_FROM", "property:message_id", "ROUTING_KEYS",
		"order.cancelled")
	w.exec("CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount INT UNSIGNED NOT NULL) ENGINE=InnoDB")
	w.exec("CREATE TABLE cancelled_order (id BIGINT AUTO_INCREMENT PRIMARY KEY, body JSON NOT NULL, " +
		"done TINYINT NOT NULL DEFAULT 0) ENGINE=InnoDB")
	const all, byTheOldJob = 600, 100
	wanted := map[int64]int64{}
	for i, o := range shop.Orders(w.rng, "job", all, skus) {
		w.exec("INSERT INTO cancelled_order (body, done) VALUES (?, ?)", string(o.Body()), i < byTheOldJob)
		for _, item := range o.Items {
			w.exec("INSERT IGNORE INTO tb_stock VALUES (?, 0)", item.SKU)
			if i >= byTheOldJob {
				wanted[item.SKU] += item.Quantity
			}
		}
	}
	open := func() int { return w.count("SELECT COUNT(*) FROM cancelled_order WHERE done = 0") }
	job := w.job()
	_, err := job(os.Getenv("PATH"))
	assert.That(t, err != nil, "a script without rollbackd says that it has published")
	require.Is(t, open(), all-byTheOldJob, "orders are open after a run that published nothing")
	daemon := w.start()
	path := filepath.Dir(program.Shared(t)) + ":" + os.Getenv("PATH") // in which the program is called rollbackd
	works := func() { out, err := job(path); assert.OK(t, err, "the script:", out) }
	var twice sync.WaitGroup
	for range 2 {
		twice.Go(works)
	}
	twice.Wait()
	// A run that is killed between publishing and marking publishes again.
	w.exec("UPDATE cancelled_order SET done = 0 WHERE id BETWEEN 200 AND 300")
	works()
	is(w, "orders are left in the table", open(), 0)
	w.ended(all - byTheOldJob)
	w.stop(daemon)
	is(w, "are applied", w.rows(dedup.Success), all-byTheOldJob)
	for sku, want := range wanted {
		assert.Is(t, int64(w.count("SELECT amount FROM tb_stock WHERE goods_id = ?", sku)), want, "back of sku %d", sku)
	}
}

// job is the script of the page as the shop runs it, with programs from a path.
func (w *world) job() func(path string) (string, error) {
	w.t.Helper()
	dsn := require.Get(mysql.ParseDSN(w.env["MYSQL_DSN"]))(w.t)
	host, port, _ := net.SplitHostPort(dsn.Addr)
	client := fmt.Sprintf("mysql --no-defaults -h%s -P%s -u%s %s", host, port, dsn.User, dsn.DBName)
	return func(path string) (string, error) {
		cmd := exec.CommandContext(w.t.Context(), "sh", "../../deploy/examples/job/publish-cancelled.sh")
		cmd.Env = append(w.environ(), "PATH="+path, "MYSQL="+client, "MYSQL_PWD="+dsn.Passwd)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}
