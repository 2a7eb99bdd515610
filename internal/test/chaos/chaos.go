package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Options say how long and how hard to try. All must be set unless they say otherwise.
type Options struct {
	// Binary is the path of the built daemon.
	Binary string
	// LogDir is where the daemons' logs go; it must exist.
	LogDir string
	// Seed decides the schedule of faults and the messages.
	Seed uint64
	// Duration is how long faults are started. In a round it is not looked at.
	Duration time.Duration
	// Round runs each kind of fault once, shortened, instead of a schedule.
	Round bool
	// Nodes is how many RabbitMQ nodes there are: 1, or 3 with the faults of a cluster.
	Nodes int
	// Databases is how many nodes form a database cluster: 3, with the faults of one; 0: one server.
	Databases int
	// Replication is the kind of that cluster.
	Replication stack.Replication
	// Rate is how many messages a second are published; 0 means 200.
	Rate int
	// Out is told what happens, line by line.
	Out io.Writer
	// People lets people work on letters and rows beside the load and the faults: see jobs.
	People bool
	// Upkeep lets operators work on the cluster: nodes restarted and replaced, leaders moved, policies changed.
	Upkeep bool
	// Only, if not empty, names the kinds of faults to run.
	Only []string
}

// Struck is what a kind of fault did in a run.
type Struck struct {
	Name  string
	Times int // how often it was started
	Hit   int // how often it hit something
	Hits  int // how much it hit in all
	Unit  string
	// Failed is how often a job of somebody's ended with an error, which faults explain, and Last is the last one.
	Failed int
	Last   error
}

// Result is what came of a run.
type Result struct {
	Options Options
	Report  *oracle.Report
	Struck  []Struck
	// Done is what people did meanwhile.
	Done []Struck
	// Pauses are the times from a fault of a database cluster to the first message that was applied after it, by kind.
	Pauses map[string][]time.Duration
	// Strays is how many sources came back with transactions that no other node knew.
	Strays int
	// Unreached are the kinds whose turn did not come in the time, or that were left out, as a line has said.
	Unreached []string
	// Starts is how often a daemon was started.
	Starts int
	// Settled is how long it took until everything had come to rest after the last fault.
	Settled time.Duration
	// Violations are what was wrong besides the oracle's findings.
	Violations []string
}

// Err is nil when the promise was kept and every kind of fault hit something.
func (r *Result) Err() error {
	errs := []error{r.Report.Err()}
	for _, v := range r.Violations {
		errs = append(errs, errors.New(v))
	}
	for _, s := range slices.Concat(r.Struck, r.Done) {
		if s.Hit == 0 {
			errs = append(errs, fmt.Errorf("%s never hit anything: the run proves nothing about it", s.Name), s.Last)
		}
	}
	return errors.Join(errs...)
}

// Print writes the table of faults and the counters.
func (r *Result) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%-26s %6s %6s  %s\n", "fault", "struck", "hit", "what it hit in all")
	for _, s := range r.Struck {
		fmt.Fprintf(w, "%-26s %6d %6d  %d %s\n", s.Name, s.Times, s.Hit, s.Hits, s.Unit)
	}
	if len(r.Done) > 0 {
		fmt.Fprintf(w, "\n%-26s %6s %6s %6s  %s\n", "somebody did", "times", "failed", "hit", "what, in all")
		for _, s := range r.Done {
			fmt.Fprintf(w, "%-26s %6d %6d %6d  %d %s\n", s.Name, s.Times, s.Failed, s.Hit, s.Hits, s.Unit)
		}
	}
	for _, s := range r.Struck {
		if pauses := r.Pauses[s.Name]; len(pauses) > 0 {
			slices.Sort(pauses)
			fmt.Fprintf(w, "%s: the first message was applied after %v\n", s.Name, roundAll(pauses))
		}
	}
	if r.Strays > 0 {
		fmt.Fprintf(w, "old sources that came back with transactions of their own: %d\n", r.Strays)
	}
	if len(r.Unreached) > 0 {
		fmt.Fprintf(w, "not run: %s\n", strings.Join(r.Unreached, ", "))
	}
	fmt.Fprintf(w, "\nseed %d, %d RabbitMQ nodes, %d of the database, 2 daemons started %d times, at rest %v after the "+
		"last fault\n", r.Options.Seed, r.Options.Nodes, max(1, r.Options.Databases), r.Starts,
		r.Settled.Round(time.Millisecond))
	fmt.Fprintln(w, r.Report.Counters)
	fmt.Fprintln(w, "dead letters by reason:", r.Report.DeadByReason)
}

func roundAll(pauses []time.Duration) (all []time.Duration) {
	for _, d := range pauses {
		all = append(all, d.Round(100*time.Millisecond))
	}
	return all
}

// Run makes servers, daemons and load, lets the faults loose, and judges. The error says that the run itself could not
// be done; what the daemons did wrong is in the result.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	if o.Rate == 0 {
		o.Rate = 200
	}
	plan := o.schedule()
	w, err := newWorld(ctx, o, plan)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	w.fleet.start(ctx)
	defer w.fleet.kill()
	if err := w.fleet.consuming(ctx); err != nil {
		return nil, err
	}
	baseline := w.fleet.goroutines(ctx)
	load, stopLoad := context.WithCancel(ctx)
	defer stopLoad()
	done := make(chan error, 1)
	go func() { done <- w.load.run(load) }() // joined below
	var all *people
	if o.People {
		all = w.startPeople(ctx)
		defer all.end()
	}
	strikes := w.strike(ctx, w.plan)
	if all != nil && strikes == nil {
		all.untilAllHit(ctx)
	}
	stopLoad()
	if err := errors.Join(strikes, <-done); err != nil {
		return nil, err
	}
	if w.load.next >= len(w.load.orders) {
		w.violation("the load ended before the faults did: all %d orders were published", w.load.next)
	}

	if all != nil {
		all.end()
		w.tidy(ctx)
	}
	settled := w.settle(ctx)
	w.noLeaks(baseline, w.fleet.goroutines(ctx))
	w.fleet.drain(ctx)
	return w.judge(ctx, settled)
}

// judge asks the oracle, after all daemons have ended.
func (w *world) judge(ctx context.Context, settled time.Duration) (*Result, error) {
	if err := w.broker.quiet(ctx); err != nil {
		w.violation("after the daemons have ended, %v", err)
	}
	if err := w.agree(ctx); err != nil {
		return nil, err
	}
	// A killed or frozen process costs each message that its lanes had claimed one attempt. A message that several faults
	// hit pays for each; all together pay for no more than there were.
	report, err := w.oracle.Check(ctx, w.before, w.load.ledger, oracle.Allowance{Attempts: maxAttempts - 1})
	if err != nil {
		return nil, fmt.Errorf("judge the run: %w", err)
	}
	if charged := w.counted(charges); report.AttemptsSpent > charged*lanes*claimAtOnce {
		w.violation("%d attempts were spent, but only %d faults could cost %d for each of %d lanes", report.AttemptsSpent,
			charged, claimAtOnce, lanes)
	}
	var alive int
	err = w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'unknown-%' AND "+
		"consumer_status <> 3").Scan(&alive)
	if err != nil {
		return nil, fmt.Errorf("ask for the messages of unknown orders: %w", err)
	}
	if alive > 0 {
		w.violation("%d messages of unknown orders are not dead", alive)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return &Result{
		Options: w.o, Report: report, Struck: w.struckInOrder(), Done: w.doneInOrder(), Unreached: w.unreached(),
		Pauses: w.pauses, Strays: w.counts[strays], Starts: w.fleet.starts(), Settled: settled, Violations: w.violations,
	}, nil
}
