package figure

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// definition is a figure. Most are a ratio of rounds: of's by those of another, or by those of the best of some rivals.
type definition struct {
	key, what string
	unit      string // empty: a ratio
	goal      goal
	note      string
	cause     string // why the goal is not reached, while it is not

	of      string
	by      string   // round by round, each by the last one of this contestant before it
	rivals  []string // of's last round before it by each round of the best of these
	remarks []string // contestants that stand in the table beside the rivals, and are measured in the first cycle only
	value   func(run.Round) float64

	// make, if not nil, makes the figure's own values, one a cycle, and its parts otherwise.
	make func(*Results) (rounds []float64, parts map[string]float64)
	// samples, if not empty, are the measurements whose field makes the figure's values.
	samples, field string
	parts          []string
	// most bounds parts too, and second is how the goal tells it.
	most   map[string]float64
	second string
}

// made are the contestants whose rounds it is made of.
func (d definition) made() (names []string) {
	for _, name := range append([]string{d.of, d.by}, d.rivals...) {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// What is measured beside rounds, by its name in results.json.
const (
	LatencyRounds = "latency_rounds"
	FailingRounds = "latency_failing_rounds"
	StartRounds   = "start_rounds"
	RelayRounds   = "relay_rounds"
	MemoryRounds  = "memory"
	LargeRounds   = "large_bodies"
)

// The keys of the figures that need more than rounds of the cycle, and of the curves.
const (
	LatencyP50 = "latency_p50_ms"
	LatencyP99 = "latency_p99_ms"
	// LatencyFailing is the latency of the good messages among some that fail.
	LatencyFailing = "latency_failing_5_p99_ms"
	StartMS        = "start_ms"
	Relay          = "relay"
	RSS            = "rss_mib"
	LargeRSS       = "large_bodies_rss_mib"
	BatchSize      = "batch_size"
	Lanes          = "lanes"
)

// fiveAttempts are the same for everybody.
var fiveAttempts = "five attempts each, " + strings.ReplaceAll(Delays, ",", ", ") + " apart"

const (
	pagesNote   = "5,000,000 rows, 100,000 dead letters; a page every 0.6 s, each in turn, and the overview live"
	lockNote    = "its servers run on the same two cores"
	failingNote = "an order without its reservation; until the last good one is applied"
	lanesNote   = "eight lanes instead of four"
	rowsCause   = "MySQL's work for the rows is half of what a message costs, and more than the goal leaves for it"
	lookedFor   = "one message in 20 is looked for every 0.4 ms until its row is committed"
	evenly      = "publish to applied at 1,000 messages/s offered, %s percentile"
	oneByOne    = "messages that come one by one, and who publishes them, keep both cores busy; LANES=2 has two thirds"
)

func deliveries(r run.Round) float64 { return r.Rate }
func applied(r run.Round) float64    { return r.Applied }

var definitions = []definition{
	{
		key: "vs_plain", what: "rollbackd ÷ plain consume, each message acked singly, same queue", goal: atLeast(0.75),
		cause: rowsCause,
		of:    Base, rivals: []string{rival.PlainEach}, remarks: []string{rival.PlainMultiple},
		note: "plain consume only takes and acks; plain_multiple acks every 500",
	},
	{
		key: "vs_classic", what: "rollbackd ÷ the classic algorithm, best of 1, 16, 64 workers", goal: atLeast(18),
		cause: rowsCause,
		of:    Base, rivals: named("classic_%d", workerCounts),
	},
	{
		key: "vs_watermill", what: "rollbackd ÷ watermill v1.5.1 + watermill-amqp/v3 v3.0.0, dedup row and effect in one " +
			"transaction, best of 1, 16, 64 subscribers", goal: atLeast(11), cause: rowsCause,
		of: Base, rivals: named("watermill_%d", workerCounts),
	},
	{
		key: "duplicates_50", what: "with 50 % duplicates ÷ without, in deliveries/s", goal: atLeast(1),
		of: "duplicates", by: Base, note: "each block of 10,000 messages is followed by its copies, shuffled",
	},
	{
		key: fullLog, what: "with 5,000,000 rows already in consumer_log ÷ empty", goal: atLeast(0.8),
		of: fullLog, by: Base, note: "and 100,000 dead letters",
	},
	{
		key: "pages", what: "while somebody looks at the pages ÷ while nobody does", goal: atLeast(0.98),
		of: "pages", by: fullLog, note: pagesNote, make: besideBoth,
	},
	{
		key: "page_ms", what: "the slowest answer of any page meanwhile", unit: "ms", goal: atMost(200), of: "pages",
		note: pagesNote, make: slowestPages,
	},
	{
		key: "poison", what: "with 1 failing message in 1,000 ÷ without, in applied messages/s", goal: atLeast(0.7),
		of: "poison", by: Base, value: applied,
		note: "its order has no reservation: an ordinary failure, tried again after 1s, 5s, 30s, 2m",
	},
	{key: "hot_goods", what: "ten goods ÷ 1,000 goods", goal: atLeast(0.8), of: "hot_goods", by: Base},
	{key: "redis_off", what: "REDIS_URL=off ÷ on", goal: atLeast(0.8), of: "redis_off", by: Base},
	{
		key: "lock_redlock", what: "LOCK=redlock on three masters ÷ one Redis", of: "lock_redlock", by: Base,
		note: lockNote,
	},
	{
		key: "lock_zookeeper", what: "LOCK=zookeeper on one server ÷ one Redis", of: "lock_zookeeper", by: Base,
		note: lockNote,
	},
	{key: "lock_mysql", what: "LOCK=mysql, beside the log ÷ one Redis", of: "lock_mysql", by: Base, note: lockNote},
	{
		key: "emit", what: "EMIT=stock.released ÷ off, no relay at work", goal: atLeast(0.6), of: "emit", by: Base,
		note: "an event for each message",
	},
	{
		key: "emit_relayed", what: "EMIT=stock.released with OUTBOX=on ÷ off", of: "emit_relayed", by: Base,
		note: "the relay works in the daemon meanwhile, on the same two cores",
	},
	{key: "two_daemons", what: "two daemons ÷ one, on the same two cores", of: "two_daemons", by: Base},
	{
		key: "failing_1", what: "good messages/s while 1 % of 200,000 fail ÷ while none fails", goal: atLeast(0.8),
		of: "failing_1", by: noneFailing, value: applied, note: failingNote,
	},
	{
		key: "failing_5", what: "good messages/s while 5 % of 200,000 fail ÷ while none fails", goal: atLeast(0.55),
		of: "failing_5", by: noneFailing, value: applied, note: failingNote,
	},
	{
		key: "failing_20", what: "good messages/s while 20 % of 200,000 fail ÷ while none fails", goal: atLeast(0.3),
		of: "failing_20", by: noneFailing, value: applied, note: failingNote,
	},
	{
		key: "all_failing", what: "attempts/s when every message fails ÷ messages/s when none does", goal: atLeast(0.15),
		of: allFailing, by: Base, note: "until all are dead letters, " + fiveAttempts,
	},
	{
		key: "classic_failing", what: "attempts/s when every message fails, rollbackd ÷ the classic algorithm, best of 16, " +
			"64 workers", goal: atLeast(2),
		of: allFailing, rivals: named("classic_%d_failing", failingWorkers),
		remarks: named("watermill_%d_failing", failingWorkers),
		note:    "everybody with " + fiveAttempts + ", and the same dead-letter queue",
	},
	{
		key: "replay", what: "dead letters replayed until applied, a second ÷ messages/s", goal: atLeast(0.3),
		of: "replay", by: Base, note: "rollbackd dlq replay --all --no-wait of 50,000 letters beside one daemon",
		cause: "a letter is published, confirmed and consumed once more, and its row changes twice more",
	},
	{
		key: "contended", what: "two daemons ÷ one, both copies of each message in hand at the same time, in deliveries/s",
		goal: atLeast(0.8), of: "contended", by: contended1,
		note: "each 1,000 messages are followed by the same ones, shuffled; on the same two cores",
	},
	{
		key: "mysql_1ms", what: "with MySQL 1 ms away, each way ÷ beside it", goal: atLeast(0.8), of: "mysql_1ms", by: Base,
		note: lanesNote,
	},
	{
		key: "mysql_1ms_failing_5", what: "good messages/s while 5 % fail with MySQL 1 ms away, each way ÷ beside it",
		goal: atLeast(0.7), of: "mysql_1ms_failing_5", by: "failing_5", value: applied, note: lanesNote,
	},
	{
		key: handlerSQL, what: "HANDLER=sql, an order's state as the guard and amount = amount + n for each item ÷ the " +
			"built-in handler", goal: atLeast(0.3),
		of: handlerSQL, by: Base, note: "the statements of deploy/examples/sql/order-state",
	},
	{
		key: guardedSQL, what: "HANDLER=sql, SELECT … FOR UPDATE as the guard and stock with decimals ÷ the built-in " +
			"handler", goal: atLeast(0.4), of: guardedSQL, by: Base,
	},
	{
		key: "handler_sql_classic", what: "HANDLER=sql ÷ the classic algorithm with the same two updates, best of 1, 16, " +
			"64 workers", goal: atLeast(4),
		of: handlerSQL, rivals: named("classic_%d_sql", workerCounts),
	},
	{
		key: handlerHTTP, what: "HANDLER=http, a service that answers in 1 ms ÷ the built-in handler", goal: atLeast(0.5),
		cause: "the HTTP client and the service, on the same cores, take two thirds of what the goal leaves for a call",
		of:    handlerHTTP, by: Base, note: "the service runs in the bench, on the same two cores",
	},
	{
		key: "handler_http_pool", what: "HANDLER=http ÷ a worker pool in Go with a commit before and after each call, best " +
			"of 16, 64, 128 workers", goal: atLeast(2),
		of: handlerHTTP, rivals: named("pool_%d", poolWorkers),
	},
	{
		key: "cpu_us_per_message", what: "the daemon's own CPU for a message, user and system", unit: "µs", of: Base,
		make: cpuOfBase, note: "the parts are the CPU of all processes for the same message",
	},
	{
		key: "floor", what: "MySQL's CPU for the same rows, made by itself from ranges of 10,000 orders ÷ for rollbackd",
		of: rival.Floor, by: Base, value: func(r run.Round) float64 { return r.CPU["mysql"] },
		note: "three statements a transaction, no queue and no Redis",
	},
	{
		key: LatencyP50, what: fmt.Sprintf(evenly, "50th"), unit: "ms", goal: atMost(6), note: lookedFor,
		cause:   oneByOne,
		samples: LatencyRounds, field: "p50_ms", parts: latencyParts,
	},
	{
		key: LatencyP99, what: fmt.Sprintf(evenly, "99th"), unit: "ms", goal: atMost(25), note: lookedFor,
		cause:   oneByOne,
		samples: LatencyRounds, field: "p99_ms", parts: latencyParts,
	},
	{
		key: LatencyFailing, what: "publish to applied of the good ones among 1,000 messages/s of which 5 % fail, 99th " +
			"percentile", unit: "ms", goal: atMost(30), note: lookedFor + "; the others have " + fiveAttempts,
		cause:   oneByOne,
		samples: FailingRounds, field: "p99_ms", parts: append([]string{"p50_ms"}, latencyParts...),
	},
	{
		key: StartMS, what: "start of a daemon to its first effect, on warm servers", unit: "ms", goal: atMost(300),
		note:    "a message waits; from before the process is made until its row is committed",
		samples: StartRounds, field: "ms", parts: []string{"starts", "fastest_ms", "slowest_ms"},
	},
	{
		key: Relay, what: "rollbackd relay ÷ a publisher with confirms that has the same messages in memory",
		goal: atLeast(0.6), note: "both on the same two cores as MySQL and RabbitMQ, from the first message to the last",
		cause:   "MySQL reads, claims and deletes a row for each message, in two commits a batch",
		samples: RelayRounds, field: "ratio", parts: []string{"relay_per_second", "plain_per_second", "messages"},
	},
	{
		key: RSS, what: "daemon's resident memory before a backlog of 1,000,000, at most; the last minute's by the " +
			"second's", unit: "MiB", goal: atMost(150), second: ", last minute ≤ 1.1 × second",
		most:    map[string]float64{"last_by_second": 1.1},
		note:    "one run of three minutes; a shop that goes on keeps the queue full",
		samples: MemoryRounds, field: "max_mib", parts: []string{
			"second_minute_mib", "last_minute_mib", "last_by_second", "least_queued", "applied", "minute_seconds"},
	},
	{
		key: LargeRSS, what: "daemon's resident memory, at most, with 2,400 bodies of 256 KiB while MySQL is blocked",
		unit: "MiB", goal: atMost(200), note: "after 100,000 ordinary messages at full speed; then all are applied",
		samples: LargeRounds, field: "max_mib", parts: []string{"after_small_mib", "at_block_mib", "blocked_seconds"},
	},
}

var latencyParts = []string{"row_written_p50_ms", "row_written_p99_ms", "max_ms", "sampled", "offered_per_second"}

// curve is throughput over a setting; the base is the point at the default.
type curve struct {
	key, title, setting string
	format              string // of the contestants' names
	points              []int
	def                 int
	guess               float64 // deliveries a second for each of the setting
}

var curves = []curve{
	{BatchSize, "Applied messages per second over batch size (4 lanes)", "BATCH_SIZE", "batch_%d",
		[]int{1, 10, 50, 100, 500, 1000, 2000}, 1000, 3000},
	{Lanes, "Applied messages per second over lanes (batches of 1,000)", "LANES", "lanes_%d", []int{1, 2, 4, 8}, 4,
		30_000},
}

// names are those of its contestants, point by point.
func (c curve) names() []string {
	names := named(c.format, c.points)
	names[slices.Index(c.points, c.def)] = Base
	return names
}

// contestants are all but the base.
func (c curve) contestants() (all []run.Contestant) {
	for i, name := range c.names() {
		if name != Base {
			all = append(all, run.Contestant{Name: name, Guess: min(30_000, c.guess*float64(c.points[i])),
				Settings: []string{fmt.Sprintf("%s=%d", c.setting, c.points[i])}})
		}
	}
	return all
}

// Names are all figures and curves.
func Names() (names []string) {
	for _, d := range definitions {
		names = append(names, d.key)
	}
	for _, c := range curves {
		names = append(names, c.key)
	}
	return names
}
