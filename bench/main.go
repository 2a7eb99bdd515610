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
       bench compare [-pairs 12] [-allow 3] [-resume] A B [CONTESTANT...]
                        whether a message costs build B no more µs of CPU than build A, of all processes together
       bench profile [CONTESTANT]    profile the daemon's CPU and the database's statements, for example of all_failing
       bench sizing     what LANES, BATCH_SIZE, PREFETCH and MEMORY_BUDGET cost in resident memory
       bench scaling    what a message costs each server at several speeds, and what more daemons bring
       bench year       how fast the last day of a year of retention is beside the first one
       bench fleet      what 1 to 8 daemons bring that may take 0.03 of a core each; as root
       bench pages      what one look at each page costs MySQL and the daemon
       bench rival NAME WORKERS    (what bench itself runs)

BENCH_ROUND=4s  BENCH_ROUNDS=3  BENCH_ONLY=vs_plain,latency_p50_ms,…  BENCH_OUT=FOLDER
BENCH_LOG_ROWS=5000000  BENCH_BACKLOG=1000000  BENCH_MINUTE=1m
BENCH_WAITING=200000  BENCH_FAILING=10000  BENCH_LETTERS=50000  BENCH_YEAR_ROWS=20000000`

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
	args = append(args, "")
	if args[0] == "compare" {
		compareMain(ctx, args[1:len(args)-1], os.Getenv)
		return
	}
	s, err := readSettings(os.Getenv)
	must.OK(err)
	alone := func(do func(settings, *run.Runner)) func() {
		return func() { s.with(ctx, ground.Options{}, func(r *run.Runner) { do(s, r) }) }
	}
	contestant := figure.Base
	if args[0] == "profile" && len(args) == 3 {
		contestant, args = args[1], args[:2]
	}
	do := map[string]func(){
		"": alone(measureAll), "-resume": alone(resume), "--resume": alone(resume), "sizing": alone(sizing),
		"scaling": alone(scaling), "year": alone(year), "fleet": alone(fleet), "pages": alone(pages),
		"profile": func() {
			c := figure.Profiled(contestant)
			s.with(ctx, ground.Options{Statements: true}, func(r *run.Runner) { r.Profile(c, "out") })
		},
	}[args[0]]
	if do == nil || len(args) > 2 {
		must.OK(errors.New(usage))
	}
	do()
}

// with does something with a runner of the ground's first build.
func (s settings) with(ctx context.Context, o ground.Options, do func(*run.Runner)) {
	o.Log = os.Stdout
	g := ground.Start(ctx, o)
	r := s.runner(g, g.Builds[0], "bench")
	err := must.Catch(func() { do(r) })
	must.OK(errors.Join(err, r.Close(), g.Stop()))
}

// runner runs the rounds of one build.
func (s settings) runner(g *ground.Ground, b ground.Build, schema string) *run.Runner {
	return &run.Runner{
		Ground: g, Build: b, Schema: schema, Length: s.Round, Warm: min(warmUp, s.Round/warmUpOfPart),
		LogRows: s.LogRows, Waiting: s.Waiting, Failing: s.Failing, Letters: s.Letters, Out: os.Stdout,
	}
}
