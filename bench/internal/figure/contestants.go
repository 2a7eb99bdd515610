package figure

import (
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// Base is the product as it comes, all settings at their defaults: the other side of most ratios.
const Base = "rollbackd"

// The points of the curves; the base is the point at the default.
var (
	batchSizes       = []int{1, 10, 50, 100, 500, 1000, 2000}
	laneCounts       = []int{1, 2, 4, 8}
	workerCounts     = []int{1, 16, 64}
	defaultBatchSize = 1000
	defaultLanes     = 4
)

// group is a part of a cycle. Each begins with the base, which is so never far from those it is compared with.
type group []run.Contestant

// cycle is one turn of everybody. The guesses are for the first turn only.
func cycle() []group {
	plain := ground.Sowing{Unreserved: true}
	groups := []group{
		{
			{Name: rival.PlainEach, Rival: rival.PlainEach, Sowing: plain, Guess: 70_000},
			{Name: rival.PlainMultiple, Rival: rival.PlainMultiple, Sowing: plain, Guess: 85_000},
		},
		{
			{Name: "duplicates", Sowing: ground.Sowing{Twice: true}, Guess: 35_000},
			{Name: "log_5m", FullLog: true, Guess: 25_000},
			{Name: "poison", Sowing: ground.Sowing{PoisonEvery: 1000}, Guess: 25_000},
			{Name: "hot_goods", Sowing: ground.Sowing{Goods: run.FewGoods}, Guess: 30_000},
		},
		{
			{Name: "redis_off", Settings: []string{"REDIS_URL=off"}, Guess: 30_000},
			{Name: "two_daemons", Daemons: 2, Guess: 30_000},
		},
	}
	for _, n := range workerCounts {
		groups[0] = append(groups[0], run.Contestant{Name: workers(rival.Classic, n), Rival: rival.Classic, Workers: n, Guess: 2500})
	}
	for _, n := range workerCounts {
		groups[0] = append(groups[0], run.Contestant{Name: workers(rival.Watermill, n), Rival: rival.Watermill, Workers: n, Guess: 4000})
	}
	for _, n := range batchSizes {
		if n != defaultBatchSize {
			groups[2] = append(groups[2], run.Contestant{Name: batchOf(n), Settings: []string{fmt.Sprintf("BATCH_SIZE=%d", n)}, Guess: min(30_000, 3000*float64(n))})
		}
	}
	for _, n := range laneCounts {
		if n != defaultLanes {
			groups[2] = append(groups[2], run.Contestant{Name: lanesOf(n), Settings: []string{fmt.Sprintf("LANES=%d", n)}, Guess: 30_000})
		}
	}
	return groups
}

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

// Cycle is one turn of the contestants that the wanted figures need, the base before each group of them. Those that only
// points of the curves, or remarks, are made of have one turn, in the first cycle: with three the run would take longer
// than its 45 minutes.
func Cycle(wanted []string, first bool) []run.Contestant {
	base := run.Contestant{Name: Base, Guess: 30_000}
	var all []run.Contestant
	needed, once := needs(wanted)
	if first {
		needed = append(needed, once...)
	}
	for _, g := range cycle() {
		var some []run.Contestant
		for _, c := range g {
			if slices.Contains(needed, c.Name) {
				some = append(some, c)
			}
		}
		if len(some) > 0 {
			all = append(append(all, base), some...)
		}
	}
	if len(all) == 0 && slices.Contains(needed, Base) {
		all = []run.Contestant{base}
	}
	return all
}

// needs are the contestants whose rounds the wanted figures are made of, and those that the curves and remarks need besides.
func needs(wanted []string) (names, once []string) {
	for _, d := range definitions {
		if slices.Contains(wanted, d.key) {
			names = append(append(names, Base), d.others...)
			once = append(once, d.remarks...)
		}
	}
	for _, c := range curves {
		if slices.Contains(wanted, c.key) {
			for _, x := range c.points {
				once = append(once, c.contestant(x))
			}
		}
	}
	return names, once
}
