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
	"github.com/rollbackd/rollbackd/bench/internal/rival"
)

const usage = `usage: bench [-resume]  measure everything and write the results, or go on where a run was ended
       bench compare [-pairs 12] [-allow 3] [-resume] A B [CONTESTANT...]
                        whether a message costs build B no more µs of CPU than build A, of all processes together
       bench profile [CONTESTANT]    profile the daemon's CPU and the database's statements, for example of all_failing
       bench sizing     what LANES, BATCH_SIZE, PREFETCH and MEMORY_BUDGET cost in resident memory
       bench scaling    what a message costs each server at several speeds, and what more daemons bring
       bench pages      what one look at each page costs MySQL and the daemon
       bench rival NAME WORKERS    (what bench itself runs)

BENCH_ROUND=10s  BENCH_ROUNDS=3  BENCH_ONLY=vs_plain,latency_p50_ms,…  BENCH_OUT=FOLDER
BENCH_LOG_ROWS=5000000  BENCH_BACKLOG=1000000  BENCH_MINUTE=1m
BENCH_WAITING=200000  BENCH_FAILING=20000  BENCH_LETTERS=100000`

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) == 3 && args[0] == "rival" {
		workers, err := strconv.Atoi(args[2])
		if err != nil {
			return fmt.Errorf("rival: %w", err)
		}
		return rival.Main(args[1], workers)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	args = append(args, "")
	if args[0] == "compare" {
		return compareMain(ctx, args[1:len(args)-1], os.Getenv)
	}
	s, err := readSettings(os.Getenv)
	if err != nil {
		return err
	}
	if len(args) == 3 && args[0] == "profile" {
		return profile(ctx, s, args[1])
	}
	do := map[string]func(context.Context, settings) error{
		"": measureAll, "-resume": resume, "--resume": resume, "sizing": sizing, "scaling": scaling, "pages": pages,
		"profile": func(ctx context.Context, s settings) error { return profile(ctx, s, figure.Base) },
	}[args[0]]
	if do == nil || len(args) > 2 {
		return errors.New(usage)
	}
	return do(ctx, s)
}
