package ground

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Sowing says what a round finds.
type Sowing struct {
	// Orders is how many orders there are, each with its reservations and one message.
	Orders int64
	// Goods is how many goods the orders share.
	Goods int64
	// Twice publishes every message a second time, as a producer does that was not sure: a block of TwinsApart messages
	// is followed by the same ones, shuffled. 0 means blocks of 10,000.
	Twice      bool
	TwinsApart int64
	// PoisonEvery, if not 0, leaves every so many-th order without its reservation: its message fails whenever it is
	// tried. 1 is all of them.
	PoisonEvery int64
	// Mistaken reserves one piece more of everything than the messages say: each is refused for good, until
	// [Field.Mend].
	Mistaken bool
	// Delays, if not empty, are the waits after failed attempts, as in RETRY_DELAYS: their queues are declared, and all
	// contestants learn them from their environment.
	Delays string
	// KeepLog leaves the rows of earlier rounds in the consumer log.
	KeepLog bool
	// NoBacklog leaves the publishing to the caller.
	NoBacklog bool
	// Handler is that of the round, as in HANDLER; empty: the built-in one. The others have no reservations.
	Handler string
	// Guarded has handler sql run guarded.sql, on stock with decimals.
	Guarded bool
	// Emits has each message that is applied put an event into the outbox, as EMIT does.
	Emits bool
	// Queues is over how many main queues the messages are spread evenly, all of which each daemon consumes; 0 means one.
	Queues int
	// Unreserved leaves out the reservations, for those who only consume.
	Unreserved bool
}

// Fails reports whether the message of order n fails whenever it is tried.
func (s Sowing) Fails(n int64) bool { return s.PoisonEvery != 0 && n%s.PoisonEvery == s.PoisonEvery-1 }

// Failing is how many of the messages fail whenever they are tried.
func (s Sowing) Failing() int64 {
	if s.PoisonEvery == 0 {
		return 0
	}
	return s.Orders / s.PoisonEvery
}

// sown is what was sown last.
type sown struct {
	Sowing
	seed       uint64
	before     oracle.Stock
	rowsBefore int64 // success rows
	grown      bool  // orders came in after the stock was read
}

// restBefore is how long the servers are left alone between the preparations and the clock's start.
const restBefore = time.Second

// amountAtFirst is how many pieces of each of the goods the shop has.
const amountAtFirst = 1_000_000_000

// successes counts the rows that say success.
const successes = "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1"

// Sow empties the field and prepares a round: stock and reservations, and, meanwhile, an empty queue with the backlog.
// It returns when everything lies there and the servers had a moment of rest.
func (f *Field) Sow(s Sowing, seed uint64) {
	f.sown = sown{Sowing: s, seed: seed}
	f.published.Store(0)
	f.clear()
	both := []func(){f.seed, func() {
		f.newQueue()
		if !s.NoBacklog {
			f.publishBacklog()
		}
	}}
	must.Side(len(both), func(i int) { both[i]() })
	f.sown.before = must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
	f.sown.rowsBefore = value[int64](f, successes)
	f.ground.Rest(restBefore)
}

// Sown is what was sown last.
func (f *Field) Sown() Sowing { return f.sown.Sowing }

// Seed is the seed of the round's keys.
func (f *Field) Seed() uint64 { return f.sown.seed }

// Published is how many messages the producers that have closed have published in this round.
func (f *Field) Published() int64 { return f.published.Load() }

// clear leaves nothing of the round before, in MySQL and in Redis.
func (f *Field) clear() {
	f.exec("TRUNCATE TABLE consumer_log_event", "TRUNCATE TABLE stock_reservation", "TRUNCATE TABLE stock")
	if !f.sown.KeepLog {
		f.exec("TRUNCATE TABLE consumer_log")
	}
	must.OK(f.ground.redis.FlushAll(f.ground.Ctx).Err())
}

// seed writes the stock and, as package stock would have left them, the reservations.
func (f *Field) seed() {
	s := f.sown
	if s.Handler != "" {
		f.seedHandler()
		return
	}
	f.exec(fmt.Sprintf("INSERT INTO stock (sku_id, amount) SELECT n+1, %d FROM %s WHERE n < %d", amountAtFirst, numbers,
		s.Goods))
	if !s.Unreserved {
		f.Reserve(0, s.Orders)
	}
}

// Growing says that the shop takes more orders while the round goes on: each with Reserve, then its message.
func (f *Field) Growing() { f.sown.grown = true }

// Reserve writes the reservations of the orders from to to-1. It may be called from several goroutines.
func (f *Field) Reserve(from, to int64) {
	sku1, q1, sku2, q2 := sqlGoods(f.sown.Goods)
	where := ""
	if every := f.sown.PoisonEvery; every != 0 {
		where = fmt.Sprintf(" AND n MOD %d <> %d", every, every-1)
	}
	if f.sown.Mistaken {
		q1, q2 = q1+"+1", q2+"+1"
	}
	for at := from; at < to; at += numbersThereAre { // the table of numbers has so many
		f.exec(fmt.Sprintf(`INSERT INTO stock_reservation (order_sn, sku_id, quantity, status)
			SELECT %[1]s, IF(k.second, %[4]s, %[2]s), IF(k.second, %[5]s, %[3]s), 1
			FROM (SELECT n + %[6]d AS n FROM %[7]s WHERE n < %[8]d) AS o,
				(SELECT 0 AS second UNION ALL SELECT 1) AS k WHERE 1%[9]s`,
			sqlOrder, sku1, q1, sku2, q2, at, numbers, min(to-at, numbersThereAre), where))
	}
}

// Mend corrects the reservations of a round that was sown Mistaken, before anything was released.
func (f *Field) Mend() {
	f.exec("UPDATE stock_reservation SET quantity = quantity - 1")
	f.sown.before = must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
}

const (
	numbers         = "bench_numbers.numbers"
	numbersThereAre = 1 << 21
)

// makeNumbers makes a table with the numbers 0 to 2,097,151: both MariaDB and MySQL read it, which have different ways
// to make numbers.
func (g *Ground) makeNumbers() {
	f := g.open("")
	defer f.DB.Close()
	f.exec("CREATE DATABASE bench_numbers", "CREATE TABLE "+numbers+" (n BIGINT NOT NULL PRIMARY KEY) ENGINE=InnoDB",
		"INSERT INTO "+numbers+" VALUES (0)")
	for n := 1; n < numbersThereAre; n *= 2 {
		f.exec(fmt.Sprintf("INSERT INTO %[1]s SELECT n + %[2]d FROM %[1]s", numbers, n))
	}
}

// FillLog adds success rows of other messages to the consumer log until it has so many, the last of them made at end
// and the others evenly within the time before it, and beside them fullDead dead ones.
func (f *Field) FillLog(rows int64, end time.Time, within time.Duration) {
	const perStatement = 250_000 // a transaction of bounded undo
	for have := value[int64](f, "SELECT COUNT(*) FROM consumer_log"); have < rows; have += perStatement {
		some := min(perStatement, rows-have)
		part := within * time.Duration(some) / time.Duration(rows)
		f.addRows(have, some, end.Add(part-within*time.Duration(have+some)/time.Duration(rows)), part)
	}
	f.fillDead()
	f.exec("ANALYZE TABLE consumer_log")
	f.writeBack()
}

// addRows adds success rows of other messages. Their keys are hashes that look like UUIDs, in no order, of the numbers
// from first on.
func (f *Field) addRows(first, rows int64, end time.Time, within time.Duration) {
	f.exec(fmt.Sprintf(
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash, consumer_status, consumer_times,
			replays, consumer_timestamp, created_at)
		SELECT '%s', '%s', k, k, UNHEX(SHA2(k, 256)), 1, 1, 0, at, at FROM (
			SELECT INSERT(INSERT(INSERT(INSERT(MD5(n + %d), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'), 24, 0, '-') AS k,
				'%s' - INTERVAL (n * %d DIV %d) MICROSECOND AS at
			FROM %s WHERE n < %d) AS others`, Group, RoutingKey, first, end.UTC().Format("2006-01-02 15:04:05.000000"),
		within.Microseconds(), rows, numbers, rows))
}

// writeBack waits until the database has written to disk what it changed, or for a minute: a log that was full before
// is there, and not on its way.
func (f *Field) writeBack() {
	const fewPages, dirtyPages = 2000, "Innodb_buffer_pool_pages_dirty"
	usual := value[float64](f, "SELECT @@GLOBAL.innodb_max_dirty_pages_pct")
	f.exec("SET GLOBAL innodb_io_capacity_max = 20000", "SET GLOBAL innodb_io_capacity = 20000",
		"SET GLOBAL innodb_max_dirty_pages_pct = 0")
	f.ground.Within(time.Minute, func() bool { return f.Status(dirtyPages)[dirtyPages] < fewPages })
	f.exec(fmt.Sprintf("SET GLOBAL innodb_max_dirty_pages_pct = %g", usual), "SET GLOBAL innodb_io_capacity = DEFAULT",
		"SET GLOBAL innodb_io_capacity_max = DEFAULT")
}

// Applied are the keys of those messages of these orders whose rows say success.
func (f *Field) Applied(orders ...int64) map[string]bool {
	var keys []string
	for _, n := range orders {
		keys = append(keys, "'"+f.KeyOf(n)+"'")
	}
	applied := map[string]bool{}
	f.Each(fmt.Sprintf("SELECT msg_key, 1 FROM consumer_log WHERE consumer_status = 1 AND group_name = '%s' AND "+
		"msg_tag = '%s' AND msg_key IN (%s)", Group, RoutingKey, strings.Join(keys, ",")),
		func(key string, _ int64) { applied[key] = true })
	return applied
}

// KeyOf is the key of order n's message.
func (f *Field) KeyOf(n int64) string { return Key(f.sown.seed, n) }

// AppliedBetween is how many messages were applied in a time, as their rows tell it.
func (f *Field) AppliedBetween(from, to time.Time) float64 {
	const between = successes + " AND consumer_timestamp >= ? AND consumer_timestamp < ?"
	return float64(value[int64](f, between, from.UTC(), to.UTC()))
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
