package figure

import (
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

// The points of the curves; the base is the point at the default.
var (
	batchSizes       = []int{1, 10, 50, 100, 500, 1000, 2000}
	laneCounts       = []int{1, 2, 4, 8}
	workerCounts     = []int{1, 16, 64}
	failingWorkers   = []int{16, 64} // one worker alone was never the fastest
	poolWorkers      = []int{16, 64, 128}
	defaultBatchSize = 1000
	defaultLanes     = 4
)

// Delays are the waits after failed attempts in the rounds in which messages fail and everything has to come to its
// end, the same for everybody: with the product's own, of 1 s to 2 min, a round would measure the waiting.
const Delays = "200ms,400ms,700ms,1s"

// What is special about rollbackd in some rounds.
const (
	// noBrake lets all letters through: nobody else counts them.
	noBrake = "MAX_DEAD_RATE=off"
	// moreLanes work at once while MySQL is far away, because each waits for it more often.
	moreLanes = "LANES=8"
	farAway   = time.Millisecond
)

// group is a part of a cycle. Each begins with the base if somebody in it is compared with the base, which is so never
// far.
type group []run.Contestant

// The names of the contestants whose messages fail.
const (
	noneFailing = "failing_0"
	allFailing  = "all_failing"
)

// fullLog is the base before a log that is full; its figure has the same name.
const fullLog = "log_5m"

// The names of the handlers' contestants, which are their figures' too.
const (
	handlerSQL  = "handler_sql"
	handlerHTTP = "handler_http"
)

// cycle is one turn of everybody. The guesses are for the first turn only.
func cycle() []group {
	plain := ground.Sowing{Unreserved: true}
	all := ground.Sowing{PoisonEvery: 1, Delays: Delays}
	groups := []group{
		{
			{Name: rival.PlainEach, Rival: rival.PlainEach, Sowing: plain, Guess: 70_000},
			{Name: rival.PlainMultiple, Rival: rival.PlainMultiple, Sowing: plain, Guess: 85_000},
		},
		{
			{Name: "duplicates", Sowing: ground.Sowing{Twice: true}, Guess: 35_000},
			{Name: fullLog, FullLog: true, Guess: 25_000}, {Name: "pages", FullLog: true, Viewed: true, Guess: 25_000},
			{Name: fullLog, FullLog: true, Guess: 25_000}, // pages stands between two of its kind
			{Name: "poison", Sowing: ground.Sowing{PoisonEvery: 1000}, Guess: 25_000},
			{Name: "hot_goods", Sowing: ground.Sowing{Goods: run.FewGoods}, Guess: 30_000},
		},
		{
			{Name: "redis_off", Settings: []string{"REDIS_URL=off"}, Guess: 30_000},
			{Name: "lock_redlock", Lock: "redlock", Guess: 25_000},
			{Name: "lock_zookeeper", Lock: "zookeeper", Guess: 15_000},
			{Name: "lock_mysql", Lock: "mysql", Guess: 15_000},
			{Name: "two_daemons", Daemons: 2, Guess: 30_000},
		},
		{
			failing(noneFailing, 0), failing("failing_1", 100), failing("failing_5", 20),
			far(failing("mysql_1ms_failing_5", 20)), failing("failing_20", 5),
		},
		{
			{Name: "replay", Replay: true, Sowing: ground.Sowing{Mistaken: true, Delays: Delays}, Settings: []string{noBrake}},
			{Name: allFailing, ToTheEnd: true, Sowing: all, Settings: []string{noBrake}},
		},
		{
			far(run.Contestant{Name: "mysql_1ms", Guess: 25_000}),
			contended(contendedOne, 1), contended("contended", 2),
		},
	}
	statements, calls := ground.Sowing{Handler: config.HandlerSQL}, ground.Sowing{Handler: config.HandlerHTTP}
	handlers := group{
		{Name: handlerSQL, Sowing: statements, Guess: 20_000}, {Name: handlerHTTP, Sowing: calls, Guess: 8000},
	}
	for _, n := range workerCounts {
		handlers = append(handlers, run.Contestant{
			Name: workers(rival.Classic, n) + "_sql", Rival: rival.Classic, Workers: n, Sowing: statements, Guess: 2500,
		})
	}
	for _, n := range poolWorkers {
		handlers = append(handlers, run.Contestant{
			Name: workers(rival.Pool, n), Rival: rival.Pool, Workers: n, Sowing: calls, Guess: 4000,
		})
	}
	groups = append(groups, handlers)
	for _, name := range []string{rival.Classic, rival.Watermill} {
		for _, n := range failingWorkers {
			groups[4] = append(groups[4], run.Contestant{
				Name: failingRival(name, n), Rival: name, Workers: n, ToTheEnd: true, Sowing: all,
			})
		}
	}
	for _, n := range workerCounts {
		groups[0] = append(groups[0], run.Contestant{
			Name: workers(rival.Classic, n), Rival: rival.Classic, Workers: n, Guess: 2500,
		})
	}
	for _, n := range workerCounts {
		groups[0] = append(groups[0], run.Contestant{
			Name: workers(rival.Watermill, n), Rival: rival.Watermill, Workers: n, Guess: 4000,
		})
	}
	for _, n := range batchSizes {
		if n != defaultBatchSize {
			groups[2] = append(groups[2], run.Contestant{
				Name: batchOf(n), Settings: []string{fmt.Sprintf("BATCH_SIZE=%d", n)}, Guess: min(30_000, 3000*float64(n)),
			})
		}
	}
	for _, n := range laneCounts {
		if n != defaultLanes {
			groups[2] = append(groups[2], run.Contestant{
				Name: lanesOf(n), Settings: []string{fmt.Sprintf("LANES=%d", n)}, Guess: 30_000,
			})
		}
	}
	return groups
}

// failing is rollbackd before a backlog of which every so many-th message fails, or none if that is 0.
func failing(name string, every int64) run.Contestant {
	return run.Contestant{
		Name: name, ToTheEnd: true, Sowing: ground.Sowing{PoisonEvery: every, Delays: Delays}, Settings: []string{noBrake},
	}
}

// far is the same with MySQL far away.
func far(c run.Contestant) run.Contestant {
	c.MySQLDelay, c.Settings = farAway, append(slices.Clip(c.Settings), moreLanes)
	return c
}

const contendedOne = "contended_one"

// contended are some daemons before a backlog in which each message comes twice within two thousand: so both copies are
// in hand at the same time, and with two daemons half of them in two.
func contended(name string, daemons int) run.Contestant {
	return run.Contestant{
		Name: name, Daemons: daemons, Sowing: ground.Sowing{Twice: true, TwinsApart: 1000}, Guess: 35_000,
	}
}

func failingRival(rival string, n int) string { return workers(rival, n) + "_failing" }

func workers(rival string, n int) string { return fmt.Sprintf("%s_%d", rival, n) }

func batchOf(n int) string {
	if n == defaultBatchSize {
		return Base
	}
	return fmt.Sprintf("batch_%d", n)
}

func lanesOf(n int) string {
	if n == defaultLanes {
		return Base
	}
	return fmt.Sprintf("lanes_%d", n)
}

// Cycle is one turn of the contestants that the wanted figures need, in the groups that are compared with each other,
// the base before each group that is compared with it. Those that only points of the curves, or remarks, are made of
// have one turn, in the first cycle: the run is long enough.
func Cycle(wanted []string, first bool) [][]run.Contestant {
	base := run.Contestant{Name: Base, Guess: 30_000}
	var all [][]run.Contestant
	needed, once, compared := needs(wanted)
	if first {
		needed = append(needed, once...)
	}
	based := false
	for _, g := range cycle() {
		var some []run.Contestant
		for _, c := range g {
			if slices.Contains(needed, c.Name) {
				some = append(some, c)
			}
		}
		if slices.ContainsFunc(some, func(c run.Contestant) bool { return slices.Contains(compared, c.Name) }) {
			some, based = append([]run.Contestant{base}, some...), true
		}
		if len(some) > 0 {
			all = append(all, some)
		}
	}
	if !based && slices.Contains(needed, Base) {
		all = append([][]run.Contestant{{base}}, all...)
	}
	return all
}

// Profiled is a contestant whose daemon can be profiled: one daemon, on a field of its own, with MySQL beside it.
func Profiled(name string) (run.Contestant, error) {
	fit := []run.Contestant{{Name: Base, Guess: 45_000}}
	for _, g := range cycle() {
		for _, c := range g {
			if c.Rival == "" && c.Daemons <= 1 && !c.FullLog && !c.Replay && c.MySQLDelay == 0 && c.Lock == "" {
				fit = append(fit, c)
			}
		}
	}
	var names []string
	for _, c := range fit {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return run.Contestant{}, fmt.Errorf("there is no %q to profile; there are %s", name, strings.Join(names, ", "))
}

// needs are the contestants whose rounds the wanted figures are made of, those that the curves and remarks need
// besides, and those of both that are compared with the base.
func needs(wanted []string) (names, once, compared []string) {
	for _, d := range definitions {
		if !slices.Contains(wanted, d.key) {
			continue
		}
		names = append(names, d.others...)
		once = append(once, d.remarks...)
		if !d.apart {
			names = append(names, Base)
			compared = append(append(compared, d.others...), d.remarks...)
		}
	}
	for _, c := range curves {
		if slices.Contains(wanted, c.key) {
			for _, x := range c.points {
				once = append(once, c.contestant(x))
				compared = append(compared, c.contestant(x))
			}
		}
	}
	return names, once, compared
}
