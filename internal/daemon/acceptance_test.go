package daemon_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/consumer/consumertest"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/handler"
	"github.com/rollbackd/rollbackd/internal/lockers"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/lock"
	"github.com/rollbackd/rollbackd/stock"
)

// suiteEnv begins the name of a variable in which a process that is to be killed finds the settings of its test.
const suiteEnv = "ROLLBACKD_TEST_SUITE/"

// suited is a world for the suite of package consumertest: that of the first process, also in one that is to be killed.
func suited(t *testing.T, pairs func() []string) *world {
	t.Helper()
	t.Parallel()
	if settings, is := os.LookupEnv(suiteEnv + t.Name()); is {
		w := &world{t: t}
		require.OK(t, json.Unmarshal([]byte(settings), &w.env))
		return w
	}
	w := aloneWorld(t, pairs()...)
	// t.Setenv is for one test at a time
	require.OK(t, os.Setenv(suiteEnv+t.Name(), string(require.Get(json.Marshal(w.env))(t))))
	return w
}

// passes lets the suite judge the handler that the settings name, beside the lock that they name.
func (w *world) passes(in consumertest.Invariant) {
	w.t.Helper()
	cfg := w.config()
	h, check, err := handler.Open(w.t.Context(), handler.Options{
		Config: cfg, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(),
		Fresh: func(key string) func() string { return cfg.Fresh(key, nil) },
	})
	require.OK(w.t, err)
	if w.db != nil {
		in.Setup(w.t, w.db)
	}
	if check != nil {
		require.OK(w.t, check(w.t.Context(), func(err error) { w.t.Log(err) }))
	}
	consumertest.Suite(w.t, consumertest.Servers{
		MySQLDSN: cfg.MySQLDSN, AMQPURL: cfg.AMQPURLs[0], Lock: cfg.Lock, RedisURL: cfg.RedisURL,
		ZooKeeperURL: cfg.ZooKeeperURL,
	}, h, in)
}

// invariant is that of orders each of which is told of by two messages, and some of whose names begin with bad: what
// their messages ask for is more than there is, or nobody can read it. When all have ended, what is bad is dead and
// nothing else is, and the query finds nothing. The statements come when stock and reservations are made.
func invariant(query string, statements ...string) consumertest.Invariant {
	rng := rand.New(rand.NewPCG(27, 1)) // the same in a process that is to be killed
	orders := slices.Concat(shop.Orders(rng, "order", 10, skus), shop.Orders(rng, "bad", 3, skus))
	var messages []consumer.Message
	add := func(key, body string) { messages = append(messages, consumertest.Message("stock.rollback", key, body)) }
	for i, o := range orders {
		if i >= 10 { // its reservation is to stay, also where the first of its goods are given back before
			o.Items = append(slices.Clone(o.Items), stock.Item{SKU: 1_000_000, Quantity: 1})
			o.Items[0].Quantity += 1000
			add(o.SN+"/malformed", `{"order_sn":`)
		}
		add(o.SN, string(o.Body()))
		add(o.SN+"/again", string(o.Body()))
	}
	return consumertest.Invariant{
		Messages: messages,
		Setup: func(t *testing.T, db *sql.DB) {
			run := func(text string) { require.Get(db.ExecContext(t.Context(), text))(t) }
			run("DELETE FROM stock")
			run("DELETE FROM stock_reservation")
			require.OK(t, shop.Stock(t.Context(), db, skus, 1000))
			require.OK(t, shop.SeedReserved(t.Context(), db, orders))
			for _, text := range statements {
				run(text)
			}
		},
		Query: query + " UNION ALL SELECT msg_key, consumer_status FROM consumer_log " +
			"WHERE consumer_status <> IF(msg_key LIKE 'bad%', 3, 1)",
	}
}

// released finds what is wrong with the tables of package stock.
const released = "SELECT sku_id, amount FROM stock WHERE amount <> 1000 - (SELECT COALESCE(SUM(quantity), 0) FROM " +
	"stock_reservation r WHERE r.sku_id = stock.sku_id AND status = 1) UNION ALL SELECT order_sn, status FROM " +
	"stock_reservation WHERE status <> IF(order_sn LIKE 'bad%', 1, 2)"

// Given the built-in handler, beside each lock, then goods are back once, and each release has its event.
func TestAcceptStockAmongFaults(t *testing.T) {
	besideEachLock(t, func(w *world) {
		w.passes(invariant(released+" UNION ALL SELECT rollback_key, 'has no event' FROM stock_reservation WHERE status = 2 "+
			"AND CONCAT(rollback_tag, '/', rollback_key) NOT IN (SELECT msg_key FROM rollbackd_outbox) UNION ALL "+
			"SELECT 'events', COUNT(*) FROM rollbackd_outbox HAVING COUNT(*) <> 10", "DELETE FROM rollbackd_outbox"))
	}, "EMIT", "stock.released")
}

// Given a file of statements that run message by message, then goods are back once.
func TestAcceptStatementsAmongFaults(t *testing.T) {
	suited(t, func() []string { return append(onStock(t)["sql"], "LOCK", "off") }).passes(invariant(released))
}

// Given a service that knows a call again by its key, then goods are back once, and no message has had two keys.
func TestAcceptCallsAmongFaults(t *testing.T) {
	suited(t, func() []string { return startStock(t) }).passes(invariant(
		released+" UNION ALL SELECT 'keys', COUNT(*) FROM service_key HAVING COUNT(*) <> 20", "DELETE FROM service_key"))
}

// Given statements that are joined for many messages, on tables of a user's own, then goods are back once, and what
// cannot be done to its end has left nothing.
func TestAcceptJoinedStatementsAmongFaults(t *testing.T) {
	file := require.Get(filepath.Abs(filepath.FromSlash("../../deploy/examples/sql/order-state/handler.sql")))(t)
	w := suited(t, func() []string { return []string{"HANDLER", "sql", "SQL_FILE", file, "LOCK", "off"} })
	w.passes(invariant("SELECT goods_id, amount FROM tb_stock WHERE amount <> (SELECT COALESCE(SUM(quantity), 0) FROM "+
		"stock_reservation WHERE sku_id = goods_id AND order_sn NOT LIKE 'bad%') UNION ALL SELECT order_sn, status "+
		"FROM tb_order WHERE status <> IF(order_sn LIKE 'bad%', 'cancelling', 'cancelled')",
		"DROP TABLE IF EXISTS tb_order, tb_stock",
		"CREATE TABLE tb_order (order_sn VARCHAR(64) PRIMARY KEY, status VARCHAR(20) NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount INT NOT NULL, CHECK (amount >= 0)) ENGINE=InnoDB",
		"INSERT INTO tb_order SELECT DISTINCT order_sn, 'cancelling' FROM stock_reservation",
		"INSERT INTO tb_stock SELECT sku_id, 0 FROM stock"))
	if w.db != nil {
		w.sqlFile(file, true)
	}
}

// onStock are the settings of the handlers that work on the tables of package stock.
func onStock(t *testing.T) map[string][]string {
	t.Helper()
	file := require.Get(filepath.Abs(filepath.Join("testdata", "stock.sql")))(t)
	return map[string][]string{"stock": nil, "sql": {"HANDLER", "sql", "SQL_FILE", file}}
}

// locks are those beside which the acceptance tests run, by their names in -run, and their settings.
var locks = map[string][]string{
	"redis":     {"REDIS_URL", ownRedis},
	"zookeeper": {"LOCK", "zookeeper"}, // it and those on Redis that fails over have servers to ask for
	"sentinels": {"REDIS_URL", withSentinels},
	"cluster":   {"REDIS_URL", inCluster},
	"redlock":   {"LOCK", "redlock"},
	"mysql":     {"LOCK", "mysql"},
}

// locksEnv asks for the acceptance tests beside redlock and the lock in MySQL: make test ONLY=locks.
const locksEnv = "ROLLBACKD_TEST_LOCKS"

// These as REDIS_URL give a world servers that no other test uses: one, a master with a replica and sentinels, or a
// cluster.
const (
	ownRedis      = "own"
	withSentinels = "sentinels"
	inCluster     = "cluster"
)

// besideEachLock runs a test beside each lock, in a world of its own with servers of its own for the lock.
func besideEachLock(t *testing.T, test func(w *world), pairs ...string) {
	t.Helper()
	t.Parallel()
	for name, lock := range locks {
		t.Run("lock "+name, func(t *testing.T) {
			if (name == "redlock" || name == "mysql") && os.Getenv(locksEnv) == "" {
				t.Skip("make test ONLY=locks runs this")
			}
			var servers []*stack.Server
			var set *stack.RedisSet
			w := suited(t, func() []string {
				var more []string
				servers, set, more = lockServers(t, lock)
				return slices.Concat(lock, more, pairs)
			})
			w.lockServers, w.lockSet = servers, set
			test(w)
		})
	}
}

// Given a lock that forgets everything again and again, when every message is published three times, then every one
// takes effect once.
func TestAcceptLockIsWiped(t *testing.T) {
	besideEachLock(t, func(w *world) {
		wipe := w.wipeLock()
		orders := w.open(400)
		sent := w.route.Rollbacks(orders)
		sent = append(sent, sent...)
		w.publish(append(sent, w.route.Rollbacks(orders)...)...)
		first, second := w.start(), w.start()
		wiped := 0
		w.eventually("all are applied", func() bool {
			wiped += wipe()
			return w.rows(dedup.Success) == len(orders)
		})
		w.ended(len(orders))
		w.stop(first, second)
		if w.judged(len(orders), 0, oracle.Allowance{}); wiped == 0 {
			w.t.Error("no lock and no marker was wiped: nothing was tried")
		}
	}, "BATCH_SIZE", "20", "LANES", "2")
}

// Given a lock whose server stands still, is gone and comes back while messages are worked on, when every message is
// published three times, then every one takes effect once.
func TestAcceptLockStandsStillAndIsGone(t *testing.T) {
	besideEachLock(t, func(w *world) {
		faults := w.lockFaults()
		const some = 100 // between two faults
		messages := some * (1 + len(faults))
		orders := w.open(messages)
		first, second := w.start(), w.start()
		for i := 0; i <= len(faults); i++ {
			if i < len(faults) {
				faults[i].do()
			}
			sent := w.route.Rollbacks(orders[some*i : some*(i+1)])
			sent = append(sent, sent...)
			w.publish(append(sent, sent[:some]...)...)
			w.eventually("all are applied", func() bool { return w.rows(dedup.Success) == some*(i+1) })
			if i < len(faults) {
				faults[i].undo()
			}
		}
		w.ended(messages)
		w.stop(first, second)
		w.judged(messages, 0, oracle.Allowance{})
	}, "BATCH_SIZE", "20", "LANES", "2")
}

// lockServers starts the servers of a test's own that the lock of these settings needs, and returns the settings that
// name them.
func lockServers(t *testing.T, settings []string) (servers []*stack.Server, set *stack.RedisSet, more []string) {
	t.Helper()
	has := func(kind lock.Kind) bool { return slices.Contains(settings, string(kind)) }
	switch {
	case slices.Contains(settings, withSentinels):
		set = stack.OwnSentinels(t)
		return set.Data, set, []string{"REDIS_URL", set.URL()}
	case slices.Contains(settings, inCluster):
		set = stack.OwnRedisCluster(t, true)
		return set.Data, set, []string{"REDIS_URL", set.URL()}
	case has(lock.KindZooKeeper):
		server := stack.OwnZooKeeper(t)
		return []*stack.Server{server}, nil, []string{"ZOOKEEPER_URL", server.URL(), "REDIS_URL", "off"}
	case has(lock.KindMySQL):
		return nil, nil, []string{"REDIS_URL", "off"} // nobody asks it
	}
	masters, urls := 1, []string(nil)
	if has(lock.KindRedlock) {
		masters = 3
	}
	for range masters {
		server := stack.OwnRedis(t)
		servers, urls = append(servers, server), append(urls, server.URL())
	}
	return servers, nil, []string{"REDIS_URL", strings.Join(urls, ",")}
}

// wipeLock returns what empties the world's own lock, and says how much was in it.
func (w *world) wipeLock() func() int {
	if w.config().Lock == lock.KindMySQL {
		return func() int {
			result := require.Get(w.db.ExecContext(w.t.Context(), "DELETE FROM "+lockers.MySQLTable))(w.t)
			return int(require.Get(result.RowsAffected())(w.t))
		}
	}
	if w.config().Lock == lock.KindZooKeeper {
		return w.wipeZooKeeper()
	}
	var clients []*redis.Client
	for _, server := range w.lockServers {
		client := redis.NewClient(require.Get(redis.ParseURL(server.URL()))(w.t))
		w.t.Cleanup(func() { _ = client.Close() })
		clients = append(clients, client)
	}
	return func() (wiped int) {
		for _, client := range clients {
			n, err := client.DBSize(w.t.Context()).Result()
			if err == nil && n > 0 {
				err, wiped = client.FlushAll(w.t.Context()).Err(), wiped+int(n)
			}
			if !redis.HasErrorPrefix(err, "READONLY") { // a replica, which its master wipes
				require.OK(w.t, err)
			}
		}
		return wiped
	}
}

func (w *world) wipeZooKeeper() func() int {
	conn := require.First(zk.Connect([]string{w.lockServers[0].Addr()}, 10*time.Second, zk.WithLogInfo(false)))(w.t)
	w.t.Cleanup(conn.Close)
	return func() (wiped int) {
		nodes, _, err := conn.Children("/rollbackd")
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			w.t.Fatal(err)
		}
		for _, node := range nodes {
			if conn.Delete("/rollbackd/"+node, -1) == nil { // else its holder was faster
				wiped++
			}
		}
		return wiped
	}
}

// lockFault is something that happens to a lock's servers, and its end.
type lockFault struct{ do, undo func() }

// lockFaults are those of the world's own lock: its servers stand still, and are gone.
func (w *world) lockFaults() []lockFault {
	switch w.config().Lock {
	case lock.KindMySQL: // its server is the log's, so its table
		letGo := func() {}
		return []lockFault{{
			func() { letGo = w.hold([]string{"UNLOCK TABLES"}, "LOCK TABLES rollbackd_lock WRITE") }, func() { letGo() },
		}, {
			func() { w.exec("RENAME TABLE rollbackd_lock TO away") }, func() { w.exec("RENAME TABLE away TO rollbackd_lock") },
		}}
	}
	all := func(do func(*stack.Server) error) func() {
		return func() {
			for _, server := range slices.Clone(w.lockServers) {
				_ = do(server) // has failed the test already
			}
		}
	}
	faults := []lockFault{
		{all((*stack.Server).Freeze), all((*stack.Server).Thaw)},
		{all((*stack.Server).Kill), all((*stack.Server).Start)},
	}
	if w.lockSet != nil {
		faults = append(faults, w.failover())
	}
	return faults
}

// failover kills a master of the lock, and starts it again when another is in its place.
func (w *world) failover() lockFault {
	var dead *stack.Server
	var count int
	return lockFault{
		func() {
			w.lockSet.Settle() // the former faults are over
			masters := w.lockSet.Masters()
			dead, count = masters[0], len(masters)
			_ = dead.Kill() // has failed the test already
		},
		func() {
			w.eventually("another is master", func() bool {
				masters := w.lockSet.Masters()
				return len(masters) == count && !slices.Contains(masters, dead)
			})
			_ = dead.Start()
		},
	}
}

// Given ten daemons with a check on one queue, with either of the project's own handlers, when every message is
// published five times, then every one takes effect once, the others are absorbed, and the check warns of nothing.
func TestTenDaemonsAndFiveCopiesOfEverything(t *testing.T) {
	t.Parallel()
	for name, pairs := range onStock(t) {
		t.Run(name, func(t *testing.T) {
			messages := sized(400, 20_000)
			w := newWorld(t, append(pairs, "CHECK", "on", "LANES", "2", "BATCH_SIZE", "100")...)
			orders := w.open(messages)
			sent := slices.Repeat(w.route.Rollbacks(orders), 5)
			var all []*program.Process
			for range 10 {
				all = append(all, w.start())
			}
			w.mixed(sent)
			w.ended(messages)
			w.stop(all...)
			is(w, "copies absorbed", w.judged(messages, 0, oracle.Allowance{}).DuplicatesAbsorbed, 4*messages)
			for line := range strings.Lines(w.logs.String()) {
				if strings.Contains(line, `"check: `) && !strings.Contains(line, "sent nothing for long") {
					t.Error(line) // a busy machine may stop a process for as long as a handler must not idle
				}
			}
		})
	}
}

// Given a shop that inserts reservations without a lock of their order, when one comes between a rollback's look at the
// order and its release, then that is no failed attempt: the rollback looks again, and gives all of it back.
func TestAReservationThatComesMeanwhileCostsNoAttempt(t *testing.T) {
	w := newWorld(t, "LANES", "1")
	w.open(1)
	const reserve = "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES ('late', ?, " +
		"2, 1, UTC_TIMESTAMP(6))"
	w.exec(reserve, 5)
	w.exec(reserve, 6)
	w.exec("INSERT INTO consumer_log (group_name, msg_tag, msg_key, consumer_status, consumer_times, consumer_timestamp, "+
		"created_at)"+
		" VALUES (?, 'stock.rollback', 'late', 2, 1, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, UTC_TIMESTAMP(6))", w.config().Group)
	comes := w.hold([]string{strings.Replace(reserve, "?", "3", 1), "COMMIT"}, "BEGIN",
		"UPDATE stock_reservation SET updated_at = UTC_TIMESTAMP(6) WHERE order_sn = 'late' AND sku_id = 6")
	daemon := w.start()
	w.publish(oracle.Sent{Publishing: w.route.Message("late", []byte(`{"order_sn":"late","reason":"cancelled"}`))})
	w.eventually("the rollback has passed sku 5 and waits for sku 6", func() bool {
		return w.count("SELECT COUNT(*) FROM "+stack.Processes+" WHERE db = DATABASE() AND info LIKE 'SELECT "+
			"order_sn, sku_id%FOR UPDATE'") > 0
	})
	comes()
	w.ended(1)
	w.stop(daemon)
	is(w, "of 3 reservations are given back",
		w.count("SELECT COUNT(*) FROM stock_reservation WHERE order_sn = 'late' AND status = 2"), 3)
	is(w, "attempts", w.count("SELECT consumer_times FROM consumer_log WHERE consumer_status = ?", int(dedup.Success)), 2)
}
