package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
)

// Options say how long and how hard to try. All must be set unless they say otherwise.
type Options struct {
	// Binary is the path of the built daemon.
	Binary string
	// LogDir is where the daemons' logs go; it must exist.
	LogDir string
	// Seed decides the schedule of faults and the messages.
	Seed uint64
	// Phase says which servers there are, and which kinds of faults.
	Phase Phase
	// Duration is how long faults are started. In a round it is not looked at.
	Duration time.Duration
	// Round runs each kind of fault once, shortened, instead of a schedule.
	Round bool
	// Rate is how many messages a second are published.
	Rate int
	// Out is told what happens, line by line.
	Out io.Writer
	// Soak, if not empty, makes a long run of it: one fault a minute, and what is watched goes to Soak.md and Soak.svg.
	Soak string
	// Only, if not empty, names the kinds of faults to run.
	Only []string
}

// Struck is what a kind of fault, or somebody's job, did in a run.
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
	// Starts is how often a process of the fleet was started.
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
	fmt.Fprintf(w, "\n%-26s %6s %6s %6s  %s\n", "fault, or somebody's job", "times", "failed", "hit", "what, in all")
	for _, s := range slices.Concat(r.Struck, r.Done) {
		fmt.Fprintf(w, "%-26s %6d %6d %6d  %d %s\n", s.Name, s.Times, s.Failed, s.Hit, s.Hits, s.Unit)
	}
	for _, s := range r.Struck {
		var pauses []string
		for _, d := range slices.Sorted(slices.Values(r.Pauses[s.Name])) {
			pauses = append(pauses, d.Round(100*time.Millisecond).String())
		}
		if len(pauses) > 0 {
			fmt.Fprintf(w, "%s: the first message was applied after %v\n", s.Name, pauses)
		}
	}
	if r.Strays > 0 {
		fmt.Fprintf(w, "old sources that came back with transactions of their own: %d\n", r.Strays)
	}
	if len(r.Unreached) > 0 {
		fmt.Fprintf(w, "not run: %s\n", strings.Join(r.Unreached, ", "))
	}
	databases := 1
	if r.Options.Phase.cluster != nil {
		databases = databaseNodes
	}
	fmt.Fprintf(w, "\nseed %d, %d RabbitMQ nodes, %d of the database, 2 daemons, 2 relays and a listener started %d "+
		"times, at rest %v after the last fault\n", r.Options.Seed, r.Options.Phase.nodes, databases, r.Starts,
		r.Settled.Round(time.Millisecond))
	fmt.Fprintf(w, "%+v\n%+v\n", r.Report.Counters, r.Report.Ends)
	fmt.Fprintln(w, "dead letters by reason:", r.Report.DeadByReason)
}

// Run makes servers, daemons and load, lets the faults loose, and judges. The error says that the run itself could not
// be done; what the daemons did wrong is in the result.
func Run(ctx context.Context, o Options) (result *Result, err error) {
	w, err := newWorld(ctx, o, o.schedule())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	err = must.Catch(func() { result = w.run() })
	return result, err
}

func (w *world) run() *Result {
	must.OK(w.fleet.consuming())
	fresh := w.fleet.metric("go_goroutines")
	load, stopLoad := context.WithCancel(w.ctx)
	defer stopLoad()
	done := make(chan error, 1)
	go func() { // joined below
		done <- must.Catch(func() {
			must.Side(2, func(side int) { must.OK([]func(context.Context) error{w.load.run, w.sell}[side](load)) })
		})
	}()
	everybody := w.startPeople()
	defer everybody.end()
	strikes := w.strike()
	if strikes == nil {
		everybody.untilAllHit()
	}
	stopLoad()
	must.OK(errors.Join(strikes, <-done))
	if w.load.next >= len(w.load.orders) {
		w.violation("the load ended before the faults did: all %d orders were published", w.load.next)
	}
	everybody.end()
	if w.o.Phase.people {
		w.tidy()
	}
	w.soak.judge()
	settled := w.settle()
	const slack = 40 // a connection of the pool more or less has one or two
	for i, now := range w.fleet.metric("go_goroutines") {
		if now == 0 || now > fresh[i]+slack {
			w.violation("daemon %d has %d goroutines at rest, the first one had %d", i, now, fresh[i])
		}
	}
	w.fleet.drain()
	return w.judge(settled)
}

// settle waits until nothing is left to do.
//
// It waits for RabbitMQ too: a queue that was moving what expired into another whose leader is lost sends that again
// after dead_letter_worker_publisher_confirm_timeout, three minutes unless it is set, and looks for such messages only
// as often as that.
func (w *world) settle() time.Duration {
	began := time.Now()
	if err := must.Catch(func() { w.wait(2*3*time.Minute+time.Minute, "not at rest", w.idle) }); err != nil {
		w.violation("after the last fault: %v", err)
	}
	return time.Since(began)
}

// judge asks the oracle, after all daemons have ended.
func (w *world) judge(settled time.Duration) *Result {
	if err := must.Catch(w.quiet); err != nil {
		w.violation("after the daemons have ended: %v", err)
	}
	w.agree()
	// A killed or frozen process costs each message that its lanes had claimed one attempt. A message that several faults
	// hit pays for each; all together pay for no more than there were.
	report := must.Get(w.oracle.Check(w.ctx, w.before, w.load.ledger, oracle.Allowance{Attempts: maxAttempts - 1}))
	if charged := w.counted(charges); report.AttemptsSpent > charged*lanes*claimAtOnce {
		w.violation("%d attempts were spent, but only %d faults could cost %d for each of %d lanes", report.AttemptsSpent,
			charged, claimAtOnce, lanes)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'unknown-%' AND consumer_status <> 3"); n > 0 {
		w.violation("%d messages of unknown orders are not dead", n)
	}
	r := w.result(report)
	r.Settled = settled
	return r
}

// result is what came of the run so far.
func (w *world) result(report *oracle.Report) *Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &Result{
		Options: w.o, Report: report, Pauses: w.pauses, Strays: w.counts[strays], Violations: w.violations,
		Starts: sum(w.fleet.all(), func(s *slot) int { return s.started }), Done: w.jobsDone(),
	}
	for _, k := range kinds() {
		if s := w.struck[k.name]; s != nil {
			r.Struck = append(r.Struck, *s)
		} else if w.o.wants(k) {
			r.Unreached = append(r.Unreached, k.name)
		}
	}
	return r
}

// Kinds are the names of all kinds of faults.
func Kinds() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}
