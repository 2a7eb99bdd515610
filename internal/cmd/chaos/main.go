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
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/chaos"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/program"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := must.Catch(func() { run(ctx) }); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) {
	o := chaos.Options{Out: os.Stdout}
	duration := flag.Duration("duration", 5*time.Minute, "how long faults are started, half of it with one node")
	flag.Uint64Var(&o.Seed, "seed", 0, "of the schedule; 0 takes one by chance")
	names := flag.String("phases", "1,3,people", "the phases: one RabbitMQ node, three, one and people at work, "+
		"one and a database cluster (galera, or as root MySQL's group, semisync or losing), three that operators work on "+
		"(upkeep)")
	flag.BoolVar(&o.Round, "round", false, "each kind of fault once, shortened")
	flag.IntVar(&o.Rate, "rate", 200, "messages published a second")
	only := flag.String("only", "", "kinds of faults, comma-separated, instead of all")
	flag.StringVar(&o.Soak, "soak", "", "one fault a minute, and what memory, handles, tables and latency did goes to "+
		"this name with .md and .svg; fails if they grow")
	kinds := flag.Bool("kinds", false, "list the kinds of faults, and end")
	flag.Parse()
	if *kinds {
		fmt.Println(strings.Join(chaos.Kinds(), "\n"))
		return
	}
	var phases []chaos.Phase
	shares := 0
	for name := range strings.SplitSeq(*names, ",") {
		at := slices.IndexFunc(chaos.Phases(), func(p chaos.Phase) bool { return p.Name == name })
		if at < 0 {
			must.OK(fmt.Errorf("-phases %q: there is no phase %q", *names, name))
		}
		phases = append(phases, chaos.Phases()[at])
		shares += phases[len(phases)-1].Share
	}
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	o.LogDir = must.Get(os.MkdirTemp("", "rollbackd-chaos-"))
	o.Binary = must.Get(program.Build(ctx, o.LogDir))
	var errs []error
	for _, o.Phase = range phases { // one after the other, each with servers of its own
		o.Duration = *duration * time.Duration(o.Phase.Share) / time.Duration(shares)
		errs = append(errs, chaos.Run(ctx, o))
	}
	if err := errors.Join(errs...); err != nil {
		must.OK(fmt.Errorf("%w\nseed %d; the daemons' logs are in %s", err, o.Seed, o.LogDir))
	}
	fmt.Println("\nall is as it must be")
	must.OK(os.RemoveAll(o.LogDir))
}
