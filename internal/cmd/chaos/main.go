// Command chaos runs the chaos of package chaos, first with one RabbitMQ node, then with three, then with one and with
// people who replay, purge and mend beside the faults, and exits with 1 when the promise was broken or a kind of fault
// never hit anything:
//
//	go run ./internal/cmd/chaos -duration 5m -seed 7
//
// With -phases galera, group or semisync the database is a cluster whose nodes fail, with losing one whose failover
// loses commits; with upkeep operators restart, replace and rebalance the nodes of RabbitMQ. The same seed gives the
// same schedule, and -kinds lists the kinds of faults. It is for tests; nothing of the product may live here.
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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/chaos"
	"github.com/rollbackd/rollbackd/internal/test/program"
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
	names := flags.String("phases", "1,3,people", "the phases: one RabbitMQ node, three, one and people at work, "+
		"one and a database cluster (galera, or as root MySQL's group, semisync or losing), three that operators work on "+
		"(upkeep)")
	round := flags.Bool("round", false, "each kind of fault once, shortened")
	rate := flags.Int("rate", 200, "messages published a second")
	only := flags.String("only", "", "kinds of faults, comma-separated, instead of all")
	logs := flags.String("logs", "", "an existing folder for the daemons' logs, which are kept; else they are kept when "+
		"the run fails")
	soak := flags.String("soak", "", "one fault a minute, and what memory, handles, tables and latency did goes to this "+
		"name with .md and .svg; fails if they grow")
	kinds := flags.Bool("kinds", false, "list the kinds of faults, and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *kinds {
		_, err := fmt.Fprintln(out, strings.Join(chaos.Kinds(), "\n"))
		return err
	}
	var phases []chaos.Phase
	shares := 0
	for name := range strings.SplitSeq(*names, ",") {
		at := slices.IndexFunc(chaos.Phases(), func(p chaos.Phase) bool { return p.Name == name })
		if at < 0 {
			return fmt.Errorf("-phases %q: there is no phase %q", *names, name)
		}
		phases = append(phases, chaos.Phases()[at])
		shares += phases[len(phases)-1].Share
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
	o := chaos.Options{Binary: binary, LogDir: dir, Seed: *seed, Round: *round, Rate: *rate, Soak: *soak, Out: out}
	if *logs != "" {
		o.LogDir = *logs
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	var errs []error
	kept := "the promise was kept"
	for _, o.Phase = range phases { // one after the other, each with servers of its own
		o.Duration = *duration * time.Duration(o.Phase.Share) / time.Duration(shares)
		run := chaos.Run
		if o.Phase.Name == "losing" {
			run, kept = chaos.Lose, "what was lost, found and mended is as it must be"
		}
		result, err := run(ctx, o)
		if err != nil {
			errs = append(errs, err)
			break
		}
		result.Print(out)
		errs = append(errs, result.Err())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\nseed %d; the daemons' logs are in %s", err, *seed, o.LogDir)
	}
	fmt.Fprintln(out, "\n"+kept)
	return os.RemoveAll(dir)
}
