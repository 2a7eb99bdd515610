package ground

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Sowing says what a round finds.
type Sowing struct {
	// Seed is that of the keys.
	Seed uint64
	// Orders is how many orders there are, each with its reservations and one message.
	Orders int64
	// Goods is how many goods the orders share.
	Goods int64
	// Twins, if not 0, publishes every message a second time, as a producer does that was not sure: each so many messages
	// are followed by the same ones, shuffled.
	Twins int64
	// PoisonEvery, if not 0, leaves every so many-th order without its reservation: its message fails whenever it is
	// tried. 1 is all of them.
	PoisonEvery int64
	// Mistaken reserves one piece more of everything than the messages say: each is refused for good, until
	// [Field.Mend].
	Mistaken bool
	// Delays, if not empty, are the waits after failed attempts, as in RETRY_DELAYS: their queues are declared, and all
	// contestants learn them from their environment.
	Delays string
	// FullLog leaves the rows of earlier rounds in the consumer log.
	FullLog bool
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

// restBefore is how long the servers are left alone between the preparations and the clock's start.
const restBefore = time.Second

// amountAtFirst is how many pieces of each of the goods the shop has.
const amountAtFirst = 1_000_000_000

// successes counts the rows that say success.
const successes = "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1"

// Sow empties the field and prepares a round: stock and reservations, and, meanwhile, an empty queue with the backlog.
// It returns when everything lies there and the servers had a moment of rest.
func (f *Field) Sow(s Sowing) {
	f.Sown, f.grown = s, false
	f.published.Store(0)
	f.clear()
	must.Together(f.seed, func() {
		f.newQueues()
		if !s.NoBacklog {
			f.publishBacklog()
		}
	})
	f.before = must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
	f.rowsBefore = value[int64](f, successes)
	f.ground.Rest(restBefore)
}

// clear leaves nothing of the round before, in MySQL and in Redis.
func (f *Field) clear() {
	f.exec("TRUNCATE TABLE consumer_log_event", "TRUNCATE TABLE stock_reservation", "TRUNCATE TABLE stock")
	if !f.Sown.FullLog {
		f.exec("TRUNCATE TABLE consumer_log")
	}
	must.OK(f.ground.redis.FlushAll(f.ground.Ctx).Err())
}

// seed writes the stock and, as package stock would have left them, the reservations.
func (f *Field) seed() {
	s := f.Sown
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

// Reserve writes the reservations of the orders from to to-1. After the first ones the shop has grown.
func (f *Field) Reserve(from, to int64) {
	f.grown = from > 0
	sku1, q1, sku2, q2 := sqlGoods(f.Sown.Goods)
	where := ""
	if every := f.Sown.PoisonEvery; every != 0 {
		where = fmt.Sprintf(" AND n MOD %d <> %d", every, every-1)
	}
	if f.Sown.Mistaken {
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
	f.before = must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
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

// fullDead is how many dead rows a full log has.
const fullDead = 100_000

// fillDead writes dead rows, which died in the last twenty days, of 23 kinds of errors, each of which names its order
// besides. Their messages are in no queue: pages show rows.
func (f *Field) fillDead() {
	const body = `CONCAT('{"order_sn":"dead-', n, '","reason":"payment_timeout","items":[{"sku_id":1,"quantity":2}]}')`
	f.exec(fmt.Sprintf(
		`INSERT IGNORE INTO consumer_log (group_name, msg_tag, msg_key, msg_id, msg_body, properties, body_hash,
			consumer_status, consumer_times, replays, consumer_timestamp, created_at, dead_at, reason, remark)
		SELECT '%s', '%s', CONCAT('letter-', n), CONCAT('letter-', n), %[3]s, '{"content_type":"application/json"}',
			UNHEX(SHA2(%[3]s, 256)), 3, 5, 0, at, at, at, '%[4]s',
			CONCAT('shelf ', CHAR(ASCII('a') + n MOD 23), ' of order dead-', n, ' is locked')
		FROM (SELECT n, UTC_TIMESTAMP(6) - INTERVAL (3600 + n * 17) SECOND AS at FROM %[5]s WHERE n < %[6]d) AS dead`,
		Group, RoutingKey, body, dedup.ReasonExhausted, numbers, fullDead))
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
func (f *Field) KeyOf(n int64) string { return Key(f.Sown.Seed, n) }

// AppliedBetween is how many messages were applied in a time, as their rows tell it.
func (f *Field) AppliedBetween(from, to time.Time) float64 {
	const between = successes + " AND consumer_timestamp >= ? AND consumer_timestamp < ?"
	return float64(value[int64](f, between, from.UTC(), to.UTC()))
}

// The orders of a round are numbered from 0. What order n holds follows from n alone, so that SQL makes the
// reservations on the server and Go the messages, without either telling the other:
//
//	order_sn   20261121-00000123
//	items      two different goods, spread evenly; 1 to 5 pieces of the first, 1 to 3 of the second
//	key        a UUID in no order, as producers make them
const orderPrefix = "20261121-"

const (
	orderDigits = 8
	// Primes, so that neighbours hold different goods.
	step1, step2 = 7919, 104_729
)

// goods is what order n holds of a shop with so many goods.
func goods(n, of int64) (sku1, quantity1, sku2, quantity2 int64) {
	a := n * step1 % of
	b := (a + 1 + n*step2%(of-1)) % of
	return a + 1, n%5 + 1, b + 1, n/5%3 + 1
}

// sqlGoods are the same two items, in SQL over a column n.
func sqlGoods(of int64) (sku1, quantity1, sku2, quantity2 string) {
	a := fmt.Sprintf("(n*%d MOD %d)", step1, of)
	b := fmt.Sprintf("((%s+1+(n*%d MOD %d)) MOD %d)", a, step2, of-1, of)
	return a + "+1", "(n MOD 5)+1", b + "+1", "((n DIV 5) MOD 3)+1"
}

// sqlOrder is order_sn, in SQL over a column n.
var sqlOrder = fmt.Sprintf("CONCAT('%s', LPAD(n, %d, '0'))", orderPrefix, orderDigits)

// body is what a shop's service publishes for order n.
func body(n, of int64) []byte {
	sku1, q1, sku2, q2 := goods(n, of)
	return fmt.Appendf(make([]byte, 0, 160), `{"order_sn":"%s","reason":"payment_timeout",`+
		`"items":[{"sku_id":%d,"quantity":%d},{"sku_id":%d,"quantity":%d}]}`, OrderSN(n), sku1, q1, sku2, q2)
}

// OrderSN is order n's order_sn.
func OrderSN(n int64) string { return fmt.Sprintf("%s%0*d", orderPrefix, orderDigits, n) }

// padded makes a body so large, with a field that nobody reads; one that is larger stays as it is.
func padded(body []byte, size int) []byte {
	const before, after = `,"note":"`, `"}`
	pad := size - len(body) - len(before) - len(after) + 1
	if pad < 0 {
		return body
	}
	return slices.Concat(body[:len(body)-1], []byte(before), bytes.Repeat([]byte("x"), pad), []byte(after))
}

// Key is the key of order n's message in the round with this seed: a UUID of version 4.
func Key(seed uint64, n int64) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, fmt.Appendf(nil, "%d %d", seed, n), 4).String()
}

// yearSpeed is how many rows a second come in a simulated year: about as many as a daemon applies. So a day of it is
// short, and the cleaner that sees its rows is under the load that it must keep pace with.
const yearSpeed, yearDays, keptDays = 30_000, 365, 30

// Year is a year of a consumer log, of which thirty days are kept, until End.
type Year struct {
	Rows int64
	End  time.Time
}

// daily is how many rows a day brings, and how long it takes.
func (y Year) daily() (rows int64, day time.Duration) {
	rows = y.Rows / yearDays
	return rows, time.Duration(rows) * time.Second / yearSpeed
}

// BeginYear gives a log the rows of the first days that are kept, and the database about half as much memory for pages
// as such rows take.
func (f *Field) BeginYear(y Year) {
	const bytesForRow, least = 25, 128 << 20
	f.exec(fmt.Sprint("SET GLOBAL innodb_buffer_pool_size = ", max(least, y.Rows*bytesForRow)))
	rows, day := y.daily()
	f.FillLog(keptDays*rows, y.End.Add(-(yearDays-keptDays)*day), keptDays*day)
}

// PassYear lets the rest of a year go by: each day brings its share of the rows, and beside it the product's cleaner
// deletes, at its own pace, what is older than is kept. It says how many rows the cleaner has deleted.
func (f *Field) PassYear(y Year) (deleted int) {
	const beyond = 1 << 40 // the numbers of all other rows
	db, _, err := dedup.Open(f.ground.Ctx, f.DSN, dedup.OpenOptions{LockWait: time.Second})
	must.OK(err)
	defer func() { must.OK(must.Get(db.DB()).Close()) }()
	log := must.Get(dedup.NewLog(db, dedup.LogOptions{
		Table: "consumer_log", Lease: time.Minute, Delays: []time.Duration{time.Second}, MaxAttempts: 5,
	}))
	rows, day := y.daily()
	for left := time.Duration(yearDays - keptDays - 1); left >= 0; left-- {
		must.Together(func() { f.addRows(beyond+int64(left)*rows, rows, y.End.Add(-left*day), day) }, func() {
			for _, p := range must.Get(log.Prune(f.ground.Ctx, dedup.PruneOptions{
				Group: Group, OlderThan: time.Since(y.End) + (left+1+keptDays)*day,
			})) {
				deleted += p.Rows
			}
		})
	}
	f.writeBack()
	return deleted
}

// LookUps is how many of so many rows that are picked by chance one connection finds in a second, a batch at a time.
func (f *Field) LookUps(rows int) float64 {
	const batch = 500
	var keys []string
	f.Each(fmt.Sprint("SELECT HEX(msg_key), 0 FROM consumer_log FORCE INDEX (by_status) WHERE consumer_status = 1 "+
		"ORDER BY RAND() LIMIT ", rows), func(key string, _ int64) { keys = append(keys, "0x"+key) })
	began := time.Now()
	for at := 0; at < len(keys); at += batch {
		some := keys[at:min(at+batch, len(keys))]
		n := value[int](f, fmt.Sprintf("SELECT COUNT(body_hash) FROM consumer_log WHERE group_name = '%s' AND "+
			"msg_tag = '%s' AND msg_key IN (%s)", Group, RoutingKey, strings.Join(some, ",")))
		if n != len(some) {
			must.OK(fmt.Errorf("%d of %d rows were found", n, len(some)))
		}
	}
	return float64(len(keys)) / time.Since(began).Seconds()
}

// LogMiB is how much room the log takes, with its indexes.
func (f *Field) LogMiB() float64 {
	f.exec("ANALYZE TABLE consumer_log")
	return value[float64](f, "SELECT CAST((data_length + index_length) / 1048576 AS DOUBLE) FROM "+
		"information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'consumer_log'")
}
