package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/rival"
	"github.com/rollbackd/rollbackd/bench/internal/run"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

const usage = `usage: bench [-resume]  measure everything and write the results, or go on where a run was ended
       bench compare [-pairs 12] [-allow 3] [-resume] A B [CONTESTANT...]  two builds
       bench profile [CONTESTANT]  |  sizing  |  scaling  |  year  |  fleet  |  pages
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
		"sizing": sizing, "scaling": scaling, "year": year, "fleet": fleet, "pages": pages,
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
