package figure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// made are the contestants whose rounds it is made of.
func (f Figure) made() []string {
	names := append([]string{f.of}, f.rivals...)
	if f.by != "" {
		names = append(names, f.by)
	}
	return names
}

// fiveAttempts are the same for everybody.
var fiveAttempts = "five attempts each, " + strings.ReplaceAll(Delays, ",", ", ") + " apart"

const (
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

var definitions = complete([]Figure{
	{
		Key: "vs_plain", What: "rollbackd ÷ plain consume, each message acked singly, same queue", Goal: "≥ 0.75",
		Cause: rowsCause, Note: "plain consume only takes and acks; plain_multiple acks every 500",
		of: Base, rivals: []string{rival.PlainEach}, remarks: []string{rival.PlainMultiple},
	},
	{
		Key: "vs_classic", What: "rollbackd ÷ the classic algorithm, best of 1, 16, 64 workers", Goal: "≥ 18",
		Cause: rowsCause, of: Base, rivals: named("classic_%d", workerCounts),
	},
	{
		Key: "vs_watermill", What: "rollbackd ÷ watermill v1.5.1 + watermill-amqp/v3 v3.0.0, dedup row and effect in one " +
			"transaction, best of 1, 16, 64 subscribers", Goal: "≥ 11",
		Cause: rowsCause, of: Base, rivals: named("watermill_%d", workerCounts),
	},
	{
		Key: "duplicates_50", What: "with 50 % duplicates ÷ without, in deliveries/s", Goal: "≥ 1", of: "duplicates",
		Note: "each block of 10,000 messages is followed by its copies, shuffled",
	},
	{
		Key: fullLog, What: "with 5,000,000 rows already in consumer_log ÷ empty", Goal: "≥ 0.8",
		Note: "and 100,000 dead letters",
	},
	{
		Key: "page_ms", What: "the slowest answer of any page before that log, at full speed", Unit: "ms", Goal: "≤ 200",
		Note: "a page every 0.6 s, each in turn, and the overview live", of: Pages, own: slowestPage,
	},
	{
		Key: "poison", What: "with 1 failing message in 1,000 ÷ without, in applied messages/s", Goal: "≥ 0.7",
		value: applied,
		Note:  "its order has no reservation: an ordinary failure, tried again after 1s, 5s, 30s, 2m",
	},
	{Key: "hot_goods", What: "ten goods ÷ 1,000 goods", Goal: "≥ 0.8"},
	{Key: "redis_off", What: "REDIS_URL=off ÷ on", Goal: "≥ 0.8"},
	{Key: "lock_redlock", What: "LOCK=redlock on three masters ÷ one Redis", Note: lockNote},
	{Key: "lock_zookeeper", What: "LOCK=zookeeper on one server ÷ one Redis", Note: lockNote},
	{Key: "lock_mysql", What: "LOCK=mysql, beside the log ÷ one Redis", Note: lockNote},
	{
		Key: "emit", What: "EMIT=stock.released ÷ off, no relay at work", Goal: "≥ 0.6",
		Note: "an event for each message",
	},
	{
		Key: "emit_relayed", What: "EMIT=stock.released with OUTBOX=on ÷ off",
		Note: "the relay works in the daemon meanwhile, on the same two cores",
	},
	{Key: "two_daemons", What: "two daemons ÷ one, on the same two cores"},
	whileFailing(1, "≥ 0.8"), whileFailing(5, "≥ 0.55"), whileFailing(20, "≥ 0.3"),
	{
		Key: allFailing, What: "attempts/s when every message fails ÷ messages/s when none does", Goal: "≥ 0.15",
		Note: "until all are dead letters, " + fiveAttempts,
	},
	{
		Key: "classic_failing", What: "attempts/s when every message fails, rollbackd ÷ the classic algorithm, best of 16, " +
			"64 workers", Goal: "≥ 2", Note: "everybody with " + fiveAttempts + ", and the same dead-letter queue",
		of: allFailing, rivals: named("classic_%d_failing", failingWorkers),
		remarks: named("watermill_%d_failing", failingWorkers),
	},
	{
		Key: "replay", What: "dead letters replayed until applied, a second ÷ messages/s", Goal: "≥ 0.3",
		Note:  "rollbackd dlq replay --all --no-wait of 50,000 letters beside one daemon",
		Cause: "a letter is published, confirmed and consumed once more, and its row changes twice more",
	},
	{
		Key: "contended", What: "two daemons ÷ one, both copies of each message in hand at the same time, in deliveries/s",
		Goal: "≥ 0.8", by: contended1,
		Note: "each 1,000 messages are followed by the same ones, shuffled; on the same two cores",
	},
	{Key: "mysql_1ms", What: "with MySQL 1 ms away, each way ÷ beside it", Goal: "≥ 0.8", Note: lanesNote},
	{
		Key: "mysql_1ms_failing_5", What: "good messages/s while 5 % fail with MySQL 1 ms away, each way ÷ beside it",
		Goal: "≥ 0.7", by: "failing_5", value: applied, Note: lanesNote,
	},
	{
		Key: handlerSQL, What: "HANDLER=sql, an order's state as the guard and amount = amount + n for each item ÷ the " +
			"built-in handler", Goal: "≥ 0.3", Note: "the statements of deploy/examples/sql/order-state",
	},
	{
		Key: guardedSQL, What: "HANDLER=sql, SELECT … FOR UPDATE as the guard and stock with decimals ÷ the built-in " +
			"handler", Goal: "≥ 0.4",
	},
	{
		Key: handlerHTTP, What: "HANDLER=http, a service that answers in 1 ms ÷ the built-in handler", Goal: "≥ 0.5",
		Cause: "the HTTP client and the service, on the same cores, take two thirds of what the goal leaves for a call",
		Note:  "the service runs in the bench, on the same two cores",
	},
	{
		Key: "cpu_us_per_message", What: "the daemon's own CPU for a message, user and system", Unit: "µs", of: Base,
		own: ownCPU, Note: "the parts are the CPU of all processes for the same message",
	},
	{
		Key: rival.Floor, What: "MySQL's CPU for the same rows, made by itself from ranges of 10,000 orders ÷ for rollbackd",
		value: func(r run.Round) float64 { return r.CPU["mysql"] },
		Note:  "three statements a transaction, no queue and no Redis",
	},
	{
		Key: "latency_p50_ms", What: fmt.Sprintf(evenly, "50th"), Unit: "ms", Goal: "≤ 6", Note: lookedFor, Cause: oneByOne,
		of: Latency, own: sampled("p50_ms"),
	},
	{
		Key: "latency_p99_ms", What: fmt.Sprintf(evenly, "99th"), Unit: "ms", Goal: "≤ 25", Note: lookedFor, Cause: oneByOne,
		of: Latency, own: sampled("p99_ms"),
	},
	{
		Key: "latency_failing_5_p99_ms", What: "publish to applied of the good ones among 1,000 messages/s of which 5 % " +
			"fail, 99th percentile", Unit: "ms", Goal: "≤ 30", Note: lookedFor + "; the others have " + fiveAttempts,
		Cause: oneByOne, of: latencyFailing, own: sampled("p99_ms"),
	},
	{
		Key: "start_ms", What: "start of a daemon to its first effect, on warm servers", Unit: "ms", Goal: "≤ 300",
		Note: "a message waits; from before the process is made until its row is committed",
		of:   starts, own: sampled("ms"),
	},
	{
		Key: relay, What: "rollbackd relay ÷ a publisher with confirms that has the same messages in memory",
		Goal: "≥ 0.6", Note: "both on the same two cores as MySQL and RabbitMQ, from the first message to the last",
		Cause: "MySQL reads, claims and deletes a row for each message, in two commits a batch",
		own:   sampled("ratio"),
	},
	{
		Key: "rss_mib", What: "daemon's resident memory before a backlog of 1,000,000, at most; the last minute's by the " +
			"second's", Unit: "MiB", Goal: "≤ 150, last minute ≤ 1.1 × second",
		most: map[string]float64{"last_by_second": 1.1},
		Note: "one run of three minutes; it stands still while a shop refills the queue", of: memory, own: sampled("max_mib"),
		once: true,
	},
	{
		Key: "large_bodies_rss_mib", What: "daemon's resident memory, at most, with 2,400 bodies of 256 KiB while MySQL " +
			"is blocked",
		Unit: "MiB", Goal: "≤ 200", Note: "after 100,000 ordinary messages at full speed; then all are applied",
		of: largeBodies, own: sampled("max_mib"), once: true,
	},
})

// whileFailing is how fast the good messages are among so many percent that fail.
func whileFailing(percent int, goal string) Figure {
	return Figure{
		Key:  fmt.Sprintf("failing_%d", percent),
		What: fmt.Sprintf("good messages/s while %d %% of 200,000 fail ÷ while none fails", percent),
		Goal: goal, by: noneFailing, value: applied, Note: failingNote,
	}
}

// complete fills in what goes without saying.
func complete(all []Figure) []Figure {
	for i := range all {
		f := &all[i]
		f.of, f.Unit, f.Goal = cmp.Or(f.of, f.Key), cmp.Or(f.Unit, "ratio"), cmp.Or(f.Goal, "reported")
		if f.rivals == nil && f.own == nil {
			f.by = cmp.Or(f.by, Base)
		}
	}
	return all
}

var curves = []Curve{
	{
		Key: "batch_size", Title: "Applied messages per second over batch size (4 lanes)", XLabel: "ROLLBACKD_BATCH_SIZE",
		format: "batch_%d", values: []int{1, 10, 50, 100, 500, 1000, 2000}, Default: 1000, guess: 3000,
	},
	{
		Key: "lanes", Title: "Applied messages per second over lanes (batches of 1,000)", XLabel: "ROLLBACKD_LANES",
		format: "lanes_%d", values: []int{1, 2, 4, 8}, Default: 4, guess: 30_000,
	},
}

// names are those of its contestants, point by point.
func (c Curve) names() []string {
	names := named(c.format, c.values)
	names[slices.Index(c.values, c.Default)] = Base
	return names
}

// contestants are all but the base.
func (c Curve) contestants() (all []run.Contestant) {
	for i, name := range c.names() {
		if name != Base {
			all = append(all, run.Contestant{Name: name, Guess: min(30_000, c.guess*float64(c.values[i])),
				Settings: []string{fmt.Sprintf("%s=%d", strings.TrimPrefix(c.XLabel, "ROLLBACKD_"), c.values[i])}})
		}
	}
	return all
}

// Names are all figures and curves.
func Names() (names []string) {
	for _, f := range definitions {
		names = append(names, f.Key)
	}
	for _, c := range curves {
		names = append(names, c.Key)
	}
	return names
}
