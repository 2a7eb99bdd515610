package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// sizes are the settings that sizing tries.
var sizes = []string{
	"", "LANES=1", "LANES=8", "LANES=16", "BATCH_SIZE=100", "BATCH_SIZE=2000", "PREFETCH=8000",
	"MEMORY_BUDGET=16MiB", "MEMORY_BUDGET=128MiB", "MEMORY_BUDGET=256MiB",
}

// sizing measures what the settings that memory hangs on cost in it.
func sizing(_ settings, r *run.Runner) {
	table := "| settings | small messages, MiB | large bodies while MySQL is blocked, MiB |\n|---|---|---|\n"
	for _, size := range sizes {
		m := r.Round(run.Contestant{Name: size, Special: func(r *run.Runner) run.Sample {
			return r.LargeBodies(r.Minute/6, strings.Fields(size)...)
		}}).Sample
		table += fmt.Sprintf("| `%s` | %.0f | %.0f |\n", size, m["after_small_mib"], m["max_mib"])
	}
	fmt.Print(table)
}

// year prints how fast the last day of a year of retention is beside the first one.
func year(s settings, r *run.Runner) {
	first, last := r.Year(s.YearRows, s.Rounds)
	fmt.Printf("\n| of %d rows a year | first day | last day | last ÷ first |\n|---|---|---|---|\n", s.YearRows)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(first)) {
		var ratios []float64
		for i := range first[name] {
			ratios = append(ratios, last[name][i]/first[name][i])
		}
		ratio := figure.Median(ratios)
		fmt.Printf("| %s | %.0f | %.0f | %.2f (%.2f to %.2f) |\n", name, figure.Median(first[name]),
			figure.Median(last[name]), ratio, slices.Min(ratios), slices.Max(ratios))
		if least := 0.9; ratio < least && name != run.LogMiB {
			errs = append(errs, fmt.Errorf("%s: %.2f of the first day, want %v", name, ratio, least))
		}
	}
	must.OK(errors.Join(errs...))
}

// scaling prints a table of docs/scaling.md: what a message costs each server at several speeds.
func scaling(_ settings, r *run.Runner) {
	table := "\n| messages/s | daemon | MySQL | RabbitMQ | Redis | commits/s | redo log | MySQL writes | " +
		"RabbitMQ writes |\n|---|---|---|---|---|---|---|---|---|\n"
	for _, speed := range []float64{100, 1000, 5000, 10_000} {
		c := r.Round(run.Contestant{Name: fmt.Sprintf("%.0f a second", speed), Extent: run.Evenly, Guess: speed})
		table += fmt.Sprintf("| %.0f | %.0f | %.0f | %.0f | %.1f | %.0f | %.0f | %.0f | %.0f |\n", c.Rate, c.CPU["client"],
			c.CPU["mysql"], c.CPU["rabbitmq"], c.CPU["redis"], c.Sample["commits_per_second"], c.Sample[run.RedoWritten],
			c.Sample["mysql_written"], c.Sample["rabbitmq_written"])
	}
	fmt.Print(table)
}

// A daemon of a fleet has so much of a core, and all servers together so much: so little that these bound them, and not
// who else works on the machine. Batches are so small that each daemon makes many in a round.
const daemonQuota, serversQuota = 0.03, 0.7

// fleet prints what daemons with a quota bring, on one queue and on four, with as many lanes; and of the largest fleet,
// before it is measured, what the others say of it. Then each of the largest is replaced.
func fleet(_ settings, r *run.Runner) {
	table := "\n| queues | daemons | messages/s | predicted | µs each: a daemon | servers | cores busy |\n" +
		"|---|---|---|---|---|---|---|\n"
	of := func(queues, n int) run.Contestant {
		return run.Contestant{
			Name: fmt.Sprintf("queues_%d_daemons_%d", queues, n), Daemons: n, Guess: 1200 * float64(n),
			Quota: daemonQuota, ServersQuota: serversQuota,
			Settings: []string{"BATCH_SIZE=200", fmt.Sprintf("LANES=%d", 4/queues)}, Sowing: ground.Sowing{Queues: queues},
		}
	}
	for _, queues := range []int{1, 4} {
		measured := map[int]float64{}
		cost, predicted := 0.0, "" // of a message to the servers; of the last fleet
		for _, n := range []int{1, 2, 4, 8} {
			if n == 8 {
				predicted = fmt.Sprintf("%.0f", foreseen(measured, n, cost))
				fmt.Printf("  predicted for %d daemons: %s\n", n, predicted)
			}
			round := r.Round(of(queues, n))
			measured[n], cost = round.Rate, round.CPU["mysql"]+round.CPU["rabbitmq"]+round.CPU["redis"]
			table += fmt.Sprintf("| %d | %d | %.0f | %s | %.1f | %.1f | %.2f |\n", queues, n, round.Rate, predicted,
				round.CPU["client"], cost, round.Busy)
		}
	}
	fmt.Print(table)
	rolling := func(r *run.Runner) run.Sample { return r.Rolling(of(1, 8)) }
	if slow := r.Round(run.Contestant{Name: "rolling", Special: rolling}).Sample["below_half_s"]; slow > 2 {
		must.OK(fmt.Errorf("for %.1f s fewer than half of the messages were applied, want 2 s at most", slow))
	}
}

// foreseen is the rate of n daemons: what n-1 others take from each of them is the same part for each (Amdahl's law),
// fitted by least squares to the fleets that were measured; and the servers' quota bounds it, at what a message costs
// them (µs).
func foreseen(measured map[int]float64, n int, cost float64) float64 {
	loss, weights := 0.0, 0.0
	for m, rate := range measured {
		others := float64(m - 1)
		loss += others * (float64(m)*measured[1]/rate - 1)
		weights += others * others
	}
	alone := float64(n) * measured[1] / (1 + loss/weights*float64(n-1))
	return min(alone, 1e6*serversQuota/cost)
}
