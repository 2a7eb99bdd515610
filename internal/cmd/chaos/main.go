// Command chaos runs the chaos of package chaos, first with one RabbitMQ node, then with three, then with one and with
// people who replay, purge and mend beside the faults, and exits with 1 when the promise was broken or a kind of fault
// never hit anything:
//
//	go run ./internal/cmd/chaos -duration 5m -seed 7
//
// With -phases databases the database is a cluster whose nodes fail, of the kind that -replication names; with -phases
// upkeep operators restart, replace and rebalance the nodes of RabbitMQ. The same seed gives the same schedule. It is
// for tests; nothing of the product may live here.
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
	"strings"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/chaos"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/stack"
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
	duration := flags.Duration("duration", 5*time.Minute, "how long faults are started, half of it with one node")
	seed := flags.Uint64("seed", 0, "of the schedule; 0 takes one by chance")
	phases := flags.String("phases", "1,3,people", "the phases: one RabbitMQ node, three, one and people at work, "+
		"one and a database cluster (databases), three that operators work on (upkeep)")
	round := flags.Bool("round", false, "each kind of fault once, shortened")
	replication := flags.String("replication", "galera", "of the phase databases: galera, or MySQL's group or semisync, "+
		"which need root")
	rate := flags.Int("rate", 200, "messages published a second")
	only := flags.String("only", "", "kinds of faults, comma-separated, instead of all")
	logs := flags.String("logs", "", "an existing folder for the daemons' logs, which are kept; else they are kept when "+
		"the run fails")
	if err := flags.Parse(args); err != nil {
		return err
	}
	kinds := map[string]stack.Replication{"galera": stack.Galera, "group": stack.Group, "semisync": stack.SemiSync}
	kind, ok := kinds[*replication]
	if !ok {
		return fmt.Errorf("-replication %q: want galera, group or semisync", *replication)
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
	o := chaos.Options{Binary: binary, LogDir: dir, Seed: *seed, Round: *round, Rate: *rate, Out: out,
		Replication: kind}
	if *logs != "" {
		o.LogDir = *logs
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if *phases == "losing" {
		return lose(ctx, o, dir)
	}
	if err := runPhases(ctx, o, *duration, strings.Split(*phases, ",")); err != nil {
		return fmt.Errorf("%w\nseed %d; the daemons' logs are in %s", err, *seed, o.LogDir)
	}
	fmt.Fprintln(out, "\nthe promise was kept")
	return os.RemoveAll(dir)
}

// lose provokes a failover that loses commits.
func lose(ctx context.Context, o chaos.Options, dir string) error {
	result, err := chaos.Lose(ctx, o)
	if err == nil {
		result.Print(o.Out)
		err = result.Err()
	}
	if err != nil {
		return fmt.Errorf("%w\nseed %d; the daemons' logs are in %s", err, o.Seed, o.LogDir)
	}
	fmt.Fprintln(o.Out, "\nwhat was lost, found and mended is as it must be")
	return os.RemoveAll(dir)
}

// runPhases runs one phase after the other, each with servers of its own.
func runPhases(ctx context.Context, o chaos.Options, all time.Duration, phases []string) error {
	known := map[string]struct {
		nodes     int
		people    bool
		share     int // of the time: most kinds of faults are those of one node
		databases int
		upkeep    bool
	}{
		"1": {nodes: 1, share: 2}, "3": {nodes: 3, share: 1}, "people": {nodes: 1, people: true, share: 1},
		"databases": {nodes: 1, share: 1, databases: 3}, "upkeep": {nodes: 3, share: 1, upkeep: true},
	}
	shares := 0
	for _, name := range phases {
		phase, ok := known[name]
		if !ok {
			return fmt.Errorf("-phases %q: want some of 1, 3, people, databases and upkeep", strings.Join(phases, ","))
		}
		shares += phase.share
	}
	var errs []error
	for _, name := range phases {
		phase := known[name]
		o.Nodes, o.People, o.Databases, o.Upkeep = phase.nodes, phase.people, phase.databases, phase.upkeep
		o.Duration = all * time.Duration(phase.share) / time.Duration(shares)
		result, err := chaos.Run(ctx, o)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		result.Print(o.Out)
		errs = append(errs, result.Err())
	}
	return errors.Join(errs...)
}
