package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// sizes are the settings that sizing tries.
var sizes = [][]string{
	nil, {"LANES=1"}, {"LANES=8"}, {"LANES=16"}, {"BATCH_SIZE=100"}, {"BATCH_SIZE=2000"}, {"PREFETCH=8000"},
	{"MEMORY_BUDGET=16MiB"}, {"MEMORY_BUDGET=128MiB"}, {"MEMORY_BUDGET=256MiB"},
}

// sizing measures what the settings that memory hangs on cost in it.
func sizing(s settings, r *run.Runner) {
	table := "| settings | small messages, MiB | large bodies while MySQL is blocked, MiB |\n|---|---|---|\n"
	for _, some := range sizes {
		m := r.LargeBodies(s.Minute/6, some...)
		name := "defaults"
		if len(some) > 0 {
			name = "`" + strings.Join(some, "` `") + "`"
		}
		table += fmt.Sprintf("| %s | %.0f | %.0f |\n", name, m["after_small_mib"], m["max_mib"])
	}
	fmt.Print(table)
}

// pages prints what one look at each page costs, before the full log and without messages beside it.
func pages(_ settings, r *run.Runner) {
	const idleSeconds = 20 // nobody looks, and somebody at the overview only
	costs := r.PageCosts(idleSeconds)
	fmt.Print("\n| page | answered after, ms | CPU of MySQL, ms | of the daemon, ms |\n|---|---|---|---|\n")
	for _, c := range costs {
		fmt.Printf("| %s | %.1f | %.1f | %.1f |\n", c.Page, c.Took, c.MySQL, c.Daemon)
	}
}

// year prints how fast the last day of a year of retention is beside the first one.
func year(s settings, r *run.Runner) {
	days := r.Year(s.YearRows, s.Rounds)
	first, last := days[0], days[1]
	fmt.Printf("\n| of %d rows a year | first day | last day | last ÷ first |\n|---|---|---|---|\n", s.YearRows)
	var errs []error
	for _, f := range []struct {
		name        string
		first, last []float64
		least       float64
	}{
		{"messages/s", first.Rates, last.Rates, 0.9}, {"rows looked up a second", first.LookUps, last.LookUps, 0.9},
		{"MiB of consumer_log", first.MiB, last.MiB, 0},
	} {
		var ratios []float64
		for i := range f.first {
			ratios = append(ratios, f.last[i]/f.first[i])
		}
		ratio := figure.Median(ratios)
		fmt.Printf("| %s | %.0f | %.0f | %.2f (%.2f to %.2f) |\n", f.name, figure.Median(f.first), figure.Median(f.last),
			ratio, slices.Min(ratios), slices.Max(ratios))
		if ratio < f.least {
			errs = append(errs, fmt.Errorf("%s: %.2f of the first day, want %v", f.name, ratio, f.least))
		}
	}
	must.OK(errors.Join(errs...))
}

var (
	// speeds are those at which a message's cost is measured, messages a second.
	speeds = []int{100, 1000, 5000, 10_000}
	// fleets are how many daemons work side by side on what sleeps.
	fleets = []int{1, 2, 4}
)

// asleep is how long the service of the fleets takes for a call: so long that four daemons, each with 64 calls at once,
// leave the processors alone.
const asleep = 200 * time.Millisecond

// scaling prints the tables of docs/scaling.md: what a message costs each server, and what more daemons bring.
func scaling(_ settings, r *run.Runner) {
	table := "\n| messages/s | daemon | MySQL | RabbitMQ | Redis | commits/s | redo log | MySQL writes | " +
		"RabbitMQ writes |\n|---|---|---|---|---|---|---|---|---|\n"
	var last run.Cost
	for _, speed := range speeds {
		last = r.Cost(speed)
		micros := last.Spent()
		line := fmt.Sprintf("| %.0f | %.0f | %.0f | %.0f | %.1f | %.0f | %.0f | %.0f | %.0f |\n", last.Rate,
			micros["client"], micros["mysql"], micros["rabbitmq"], micros["redis"], last.Commits, last.Redo,
			last.Written["mysql"], last.Written["rabbitmq"])
		fmt.Printf("  %d offered: %s", speed, line)
		table += line
	}
	fmt.Print(table)
	fmt.Printf("\nbytes of a row with its indexes: consumer_log %.0f, stock_reservation %.0f; connections of the "+
		"daemon: mysql %d, rabbitmq %d, redis %d\n", last.RowBytes["consumer_log"], last.RowBytes["stock_reservation"],
		last.Connections["mysql"], last.Connections["rabbitmq"], last.Connections["redis"])
	table = fmt.Sprintf("\n| daemons | messages/s, each call of %v | cores busy |\n|---|---|---|\n", asleep)
	for _, n := range fleets {
		round := r.Round(run.Contestant{
			Name: fmt.Sprintf("asleep_%d", n), Daemons: n, Guess: 320 * float64(n),
			Sowing: ground.Sowing{Handler: config.HandlerHTTP, AnswerAfter: asleep},
		})
		table += fmt.Sprintf("| %d | %.0f | %.2f |\n", n, round.Rate, round.Busy)
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
	c := of(1, 8)
	c.Name = "rolling"
	if slow := r.Rolling(c)["below_half_s"]; slow > 2 {
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
