package figure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/config"
)

// Base is the product as it comes, all settings at their defaults: the other side of most ratios.
const Base = "rollbackd"

// Delays are the waits after failed attempts in the rounds in which messages fail and everything has to come to its
// end, the same for everybody: with the product's own, of 1 s to 2 min, a round would measure the waiting.
const Delays = "200ms,400ms,700ms,1s"

// The names of contestants that are named more than once.
const (
	fullLog     = "log_5m"    // the base before a log that is full
	noneFailing = "failing_0" // and allFailing: before messages of which none or all fail
	allFailing  = "all_failing"
	handlerSQL  = "handler_sql"
	guardedSQL  = "handler_sql_guarded"
	handlerHTTP = "handler_http"
	contended1  = "contended_one"

	// Latency and Pages mean something else where builds are compared: what messages that come evenly cost, and a look.
	Latency = "latency"
	Pages   = "pages"

	latencyFailing = "latency_failing"
	starts         = "start"
	relay          = "relay"
	memory         = "memory"
	largeBodies    = "large_bodies"
)

// Offered is how many messages a second the latency is measured at; of failEvery of them one fails, where some do.
const Offered, failEvery = 1000, 20

// How many workers the rivals have. One alone was never the fastest where messages fail.
var workerCounts, failingWorkers = []int{1, 16, 64}, []int{16, 64}

// named are the names of contestants that differ in a number.
func named(format string, numbers []int) (names []string) {
	for _, n := range numbers {
		names = append(names, fmt.Sprintf(format, n))
	}
	return names
}

// many are a rival with these numbers of workers.
func many(format string, numbers []int, c run.Contestant) (all []run.Contestant) {
	for i, name := range named(format, numbers) {
		c.Name, c.Workers = name, numbers[i]
		all = append(all, c)
	}
	return all
}

// What is special about rollbackd in some rounds.
var (
	// noBrake lets all letters through: nobody else counts them.
	noBrake = []string{"MAX_DEAD_RATE=off"}
	// More lanes work at once while MySQL is far away, because each waits for it more often.
	farAway, moreLanes = time.Millisecond, "LANES=8"
)

// groups are everybody but the base, in the order of their turns. The base has its turn before each group in which
// somebody is compared with it, so it is never far. The guesses are for the first turn only.
func groups() [][]run.Contestant {
	plain := ground.Sowing{Unreserved: true}
	full := ground.Sowing{FullLog: true}
	// Each message comes twice within two thousand: so both copies are in hand at the same time, and with two daemons
	// half of them in two.
	twins := ground.Sowing{Twins: 1000}
	failing := func(every int64) ground.Sowing { return ground.Sowing{PoisonEvery: every, Delays: Delays} }
	lost := run.Contestant{Rival: rival.Classic, Extent: run.ToTheEnd, Sowing: failing(1)}
	lostToo := lost
	lostToo.Rival = rival.Watermill
	return [][]run.Contestant{
		slices.Concat([]run.Contestant{
			{Name: rival.PlainEach, Rival: rival.PlainEach, Sowing: plain, Guess: 70_000},
			{Name: rival.PlainMultiple, Rival: rival.PlainMultiple, Sowing: plain, Guess: 85_000},
			{Name: rival.Floor, Rival: rival.Floor, Extent: run.ToTheEnd, Sowing: ground.Sowing{NoBacklog: true}},
		},
			many("classic_%d", workerCounts, run.Contestant{Rival: rival.Classic, Guess: 2500}),
			many("watermill_%d", workerCounts, run.Contestant{Rival: rival.Watermill, Guess: 4000}),
		),
		{
			{Name: "duplicates", Sowing: ground.Sowing{Twins: 10_000}, Guess: 35_000},
			{Name: fullLog, Sowing: full, Guess: 25_000},
			{Name: Pages, Sowing: full, Viewed: true, Guess: 25_000},
			{Name: "poison", Sowing: ground.Sowing{PoisonEvery: 1000}, Guess: 25_000},
			{Name: "hot_goods", Sowing: ground.Sowing{Goods: run.FewGoods}, Guess: 30_000},
		},
		slices.Concat([]run.Contestant{
			{Name: "redis_off", Settings: []string{"REDIS_URL=off"}, Guess: 30_000},
			{Name: "lock_redlock", Lock: "redlock", Guess: 25_000},
			{Name: "lock_zookeeper", Lock: "zookeeper", Guess: 15_000},
			{Name: "lock_mysql", Lock: "mysql", Guess: 15_000},
			{Name: "emit", Sowing: ground.Sowing{Emits: true}, Guess: 20_000},
			{Name: "emit_relayed", Sowing: ground.Sowing{Emits: true}, Settings: []string{"OUTBOX=on"}, Guess: 12_000},
			{Name: "two_daemons", Daemons: 2, Guess: 30_000},
		},
			curves[0].contestants(), curves[1].contestants(),
		),
		{
			{Name: noneFailing, Extent: run.ToTheEnd, Sowing: failing(0), Settings: noBrake},
			{Name: "failing_1", Extent: run.ToTheEnd, Sowing: failing(100), Settings: noBrake},
			{Name: "failing_5", Extent: run.ToTheEnd, Sowing: failing(20), Settings: noBrake},
			{Name: "mysql_1ms_failing_5", Extent: run.ToTheEnd, Sowing: failing(20), MySQLDelay: farAway,
				Settings: append(slices.Clip(noBrake), moreLanes)},
			{Name: "failing_20", Extent: run.ToTheEnd, Sowing: failing(5), Settings: noBrake},
		},
		slices.Concat([]run.Contestant{
			{Name: "replay", Extent: run.Replayed, Sowing: ground.Sowing{Mistaken: true, Delays: Delays}, Settings: noBrake},
			{Name: allFailing, Extent: run.ToTheEnd, Sowing: failing(1), Settings: noBrake},
		},
			many("classic_%d_failing", failingWorkers, lost), many("watermill_%d_failing", failingWorkers, lostToo),
		),
		{
			{Name: "mysql_1ms", MySQLDelay: farAway, Settings: []string{moreLanes}, Guess: 25_000},
			{Name: contended1, Sowing: twins, Guess: 35_000},
			{Name: "contended", Daemons: 2, Sowing: twins, Guess: 35_000},
			{Name: handlerSQL, Sowing: ground.Sowing{Handler: config.HandlerSQL}, Guess: 20_000},
			{Name: handlerHTTP, Sowing: ground.Sowing{Handler: config.HandlerHTTP}, Guess: 8000},
			{Name: guardedSQL, Sowing: ground.Sowing{Handler: config.HandlerSQL, Guarded: true}, Guess: 20_000},
		},
		{{Name: Latency, Special: func(r *run.Runner) run.Sample { return r.Latency(Offered, 0, "") }}},
		{{Name: latencyFailing, Special: func(r *run.Runner) run.Sample { return r.Latency(Offered, failEvery, Delays) }}},
		{{Name: starts, Special: (*run.Runner).Starts}},
		{{Name: relay, Special: (*run.Runner).Relay}},
		{{Name: memory, Special: (*run.Runner).Memory}},
		{{Name: largeBodies, Special: func(r *run.Runner) run.Sample { return r.LargeBodies(r.Minute / 2) }}},
	}
}

// Cycle is one turn of the contestants that the wanted figures need, in the groups that are compared with each other,
// the base before each group that is compared with it. Those that are measured once, and of which only points of the
// curves, or remarks, are made, have one turn, in the first cycle: the run is long enough.
func Cycle(wanted []string, first bool) (all [][]run.Contestant) {
	needed, compared := needs(wanted, first)
	base := run.Contestant{Name: Base, Guess: 30_000}
	based := false
	for _, g := range groups() {
		some := slices.DeleteFunc(g, func(c run.Contestant) bool { return !slices.Contains(needed, c.Name) })
		if slices.ContainsFunc(some, func(c run.Contestant) bool { return slices.Contains(compared, c.Name) }) {
			some, based = slices.Insert(some, 0, base), true
		}
		if len(some) > 0 {
			all = append(all, some)
		}
	}
	if !based && slices.Contains(needed, Base) {
		all = slices.Insert(all, 0, []run.Contestant{base})
	}
	return all
}

// needs are the contestants whose rounds the wanted figures and, in the first cycle, the curves and remarks are made
// of, and those of them that are compared with the base.
func needs(wanted []string, first bool) (names, compared []string) {
	for _, d := range definitions {
		if !slices.Contains(wanted, d.Key) || d.once && !first {
			continue
		}
		some := d.made()
		if first {
			some = append(some, d.remarks...)
		}
		names = append(names, some...)
		if slices.Contains(some, Base) {
			compared = append(compared, some...)
		}
	}
	for _, c := range curves {
		if first && slices.Contains(wanted, c.Key) {
			names = append(names, c.names()...)
			compared = append(compared, c.names()...)
		}
	}
	return names, slices.DeleteFunc(compared, func(name string) bool { return name == Base })
}

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
