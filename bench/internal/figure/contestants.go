package figure

import (
	"fmt"
	"slices"
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
