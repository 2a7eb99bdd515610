// Command chaos runs the chaos of package chaos, first with one RabbitMQ node, then with three, and exits with 1 when the
// promise was broken or a kind of fault never hit anything:
//
//	go run ./internal/chaos/cmd/chaos -duration 5m -seed 7
//
// The same seed gives the same schedule. It is for tests; nothing of the product may live here.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/chaos"
	"github.com/rollbackd/rollbackd/internal/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	duration := flags.Duration("duration", 5*time.Minute, "how long faults are started, half of it with one RabbitMQ node")
	seed := flags.Uint64("seed", 0, "of the schedule; 0 takes one by chance")
	nodes := flags.String("nodes", "1,3", "the phases: RabbitMQ nodes of each, 1 or 3")
	round := flags.Bool("round", false, "each kind of fault once, shortened")
	rate := flags.Int("rate", 200, "messages published a second")
	only := flags.String("only", "", "kinds of faults, comma-separated, instead of all")
	logs := flags.String("logs", "", "an existing folder for the daemons' logs, which are kept; else they are kept when the run fails")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	dir, err := os.MkdirTemp("", "rollbackd-chaos-")
	if err != nil {
		return fmt.Errorf("make a folder for the binary and the logs: %w", err)
	}
	binary, err := program.Build(ctx, dir)
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	o := chaos.Options{Binary: binary, LogDir: dir, Seed: *seed, Round: *round, Rate: *rate, Out: out}
	if *logs != "" {
		o.LogDir = *logs
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if err := phases(ctx, o, *duration, *nodes); err != nil {
		return fmt.Errorf("%w\nseed %d; the daemons' logs are in %s", err, *seed, o.LogDir)
	}
	fmt.Fprintln(out, "\nthe promise was kept")
	return os.RemoveAll(dir)
}

// phases runs one phase after the other, each with servers of its own.
func phases(ctx context.Context, o chaos.Options, all time.Duration, nodes string) error {
	var errs []error
	for phase := range strings.SplitSeq(nodes, ",") {
		n, err := strconv.Atoi(phase)
		if err != nil || n != 1 && n != 3 {
			return fmt.Errorf("-nodes %q: want 1, 3 or 1,3", nodes)
		}
		o.Nodes, o.Duration = n, all/time.Duration(1+strings.Count(nodes, ","))
		result, err := chaos.Run(ctx, o)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		result.Print(o.Out)
		errs = append(errs, result.Err())
	}
	return errors.Join(errs...)
}
