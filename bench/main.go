// Command bench measures rollbackd beside its rivals in one run, on servers of its own: see README.md. It is a module
// of its own, so that the rivals' libraries stay out of the product's.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
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
