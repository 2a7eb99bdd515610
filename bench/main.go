// Command bench measures rollbackd beside its rivals in one run, on servers of its own: see README.md. It is a module
// of its own, so that the rivals' libraries stay out of the product's.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

const usage = `usage: bench [-resume]  measure everything and write the results, or go on where a run was ended
       bench compare [-pairs 12] [-allow 3] [-resume] A B [CONTESTANT...]  two builds
       bench profile [CONTESTANT]  |  sizing  |  scaling  |  year  |  fleet
README.md says what each of them tells, and which variables there are: BENCH_ROUND=4s and others.`

func main() {
	if err := must.Catch(func() { command(os.Args[1:]) }); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command does what is asked for. Here and below, who cannot do a step stops all, as package must says.
func command(args []string) {
	if len(args) == 3 && args[0] == "rival" {
		rival.Main(args[1], must.Get(strconv.Atoi(args[2])))
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	name, rest := "", args
	if len(args) > 0 {
		name, rest = args[0], args[1:]
	}
	if name == "compare" {
		compareMain(ctx, rest, os.Getenv)
		return
	}
	s, err := readSettings(os.Getenv)
	must.OK(err)
	profiled := figure.Base
	if name == "profile" && len(rest) == 1 {
		profiled, rest = rest[0], nil
	}
	resume := func(s settings, r *run.Runner) { measure(s, r, true) }
	do := map[string]func(settings, *run.Runner){
		"": func(s settings, r *run.Runner) { measure(s, r, false) }, "-resume": resume, "--resume": resume,
		"sizing": sizing, "scaling": scaling, "year": year, "fleet": fleet,
		"profile": func(_ settings, r *run.Runner) {
			c := figure.Subjects([]string{profiled})[0].Contestant
			if c.Extent == run.Whole {
				c.Guess *= 2 // it must not end before the profile does
			}
			r.Profiles = "out"
			r.Round(c)
		},
	}[name]
	if do == nil || len(rest) > 0 {
		must.OK(errors.New(usage))
	}
	s.with(ctx, ground.Options{Statements: name == "profile"}, func(r ...*run.Runner) { do(s, r[0]) })
}

// with does something with a runner for each of the ground's builds.
func (s settings) with(ctx context.Context, o ground.Options, do func(...*run.Runner)) {
	o.Log = os.Stdout
	g := ground.Start(ctx, o)
	var all []*run.Runner
	for i, b := range g.Builds {
		all = append(all, run.New(g, b, "bench_"+sides[i], s.Sizes, os.Stdout))
	}
	err := must.Catch(func() { do(all...) })
	for _, r := range all {
		err = errors.Join(err, r.Close())
	}
	must.OK(errors.Join(err, g.Stop()))
}

// settings are those of one run. What the variables set stands in the progress, so that only the same run goes on.
type settings struct {
	run.Sizes
	Rounds   int64    // how often everybody has a turn
	YearRows int64    // how many rows the year of retention has
	Only     []string // figures and curves

	to       string // the folder of the results
	complete bool   // it is a result; with anything but the defaults it is a trial
}

// readSettings reads the environment; all that is wrong is in the error. Results go into this folder, trials into out,
// so that a trial never overwrites a result.
func readSettings(env func(string) string) (settings, error) {
	s, all := settings{complete: true, to: "."}, figure.Names()
	var only string
	vars := flag.NewFlagSet("", flag.ContinueOnError)
	vars.DurationVar(&s.Length, "BENCH_ROUND", 4*time.Second, "")
	vars.DurationVar(&s.Minute, "BENCH_MINUTE", time.Minute, "")
	vars.Int64Var(&s.Rounds, "BENCH_ROUNDS", 3, "")
	vars.Int64Var(&s.LogRows, "BENCH_LOG_ROWS", 5_000_000, "")
	vars.Int64Var(&s.Backlog, "BENCH_BACKLOG", 1_000_000, "")
	vars.Int64Var(&s.Waiting, "BENCH_WAITING", 200_000, "")
	vars.Int64Var(&s.Failing, "BENCH_FAILING", 10_000, "")
	vars.Int64Var(&s.Letters, "BENCH_LETTERS", 50_000, "")
	vars.Int64Var(&s.YearRows, "BENCH_YEAR_ROWS", 20_000_000, "")
	vars.StringVar(&only, "BENCH_ONLY", strings.Join(all, ","), "")
	var errs []error
	vars.VisitAll(func(f *flag.Flag) {
		text := env(f.Name)
		if text == "" {
			return
		}
		s.complete = false
		if err := f.Value.Set(text); err != nil || strings.Trim(text, "0smh") == "" || text[0] == '-' {
			errs = append(errs, fmt.Errorf("%s=%q: want more than nothing, such as %s", f.Name, text, f.DefValue))
		}
	})
	s.Only = strings.Split(only, ",")
	for _, name := range s.Only {
		if !slices.Contains(all, name) {
			errs = append(errs, fmt.Errorf("BENCH_ONLY: there is no figure %q; there are %s", name, strings.Join(all, ", ")))
		}
	}
	if !s.complete {
		s.to = "out"
	}
	s.to = cmp.Or(env("BENCH_OUT"), s.to)
	return s, errors.Join(errs...)
}

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
