package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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

// tally is what a kind of fault, or somebody's job, did in a run.
type tally struct {
	name, unit string
	job        bool
	times      int             // how often it was started
	hit        int             // how often it hit something
	hits       int             // how much it hit in all
	failed     int             // how often a job ended with an error, which faults explain
	last       error           // the last one
	pauses     []time.Duration // from a fault of a database cluster to the first message that was applied after it
}

// tallies are those of all kinds and jobs that belong to the run.
func (o Options) tallies() (all []*tally) {
	for _, k := range kinds() {
		if o.wants(k) {
			all = append(all, &tally{name: k.name, unit: k.unit})
		}
	}
	if o.Phase.people {
		for _, j := range jobs() {
			all = append(all, &tally{name: j.name, unit: j.unit, job: true})
		}
	}
	return all
}

// Run makes servers, daemons and load, lets the faults loose, judges, and tells. The error says that the run could not
// be done, or that the promise was broken, or that a kind of fault has hit nothing.
func Run(ctx context.Context, o Options) (err error) {
	run := (*world).run
	if o.Phase.Name == losing {
		o.Round, o.Rate, run = true, 100, (*world).lose
	}
	w, err := newWorld(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return must.Catch(func() {
		run(w)
		w.print()
		must.OK(w.verdict())
	})
}

// verdict is nil when the promise was kept and every kind of fault that was begun, and every job, hit something.
func (w *world) verdict() error {
	errs := []error{w.report.Err()}
	for _, v := range w.violations {
		errs = append(errs, errors.New(v))
	}
	for _, t := range w.tallies {
		if t.hit == 0 && (t.times > 0 || t.job) {
			errs = append(errs, fmt.Errorf("%s never hit anything: the run proves nothing about it", t.name), t.last)
		}
	}
	return errors.Join(errs...)
}

// print writes the table of faults and the counters.
func (w *world) print() {
	say := func(format string, args ...any) { fmt.Fprintf(w.o.Out, format+"\n", args...) }
	say("\n%-26s %6s %6s %6s  %s", "fault, or somebody's job", "times", "failed", "hit", "what, in all")
	for _, t := range w.tallies { // one that has hit nothing had no turn in the time, or was left out, as a line has said
		say("%-26s %6d %6d %6d  %d %s", t.name, t.times, t.failed, t.hit, t.hits, t.unit)
		if len(t.pauses) > 0 {
			slices.Sort(t.pauses)
			say("  the first message was applied after %v", t.pauses)
		}
	}
	if n := w.counts[strays]; n > 0 {
		say("old sources that came back with transactions of their own: %d", n)
	}
	say("\nseed %d, %d RabbitMQ nodes, %d of the database; daemons, relays and the listener were started %d times",
		w.o.Seed, w.o.Phase.nodes, max(1, len(w.stack.Databases)),
		sum(w.fleet.all(), func(s *slot) int { return s.started }))
	say("%+v\n%+v\ndead letters by reason: %v", w.report.Counters, w.report.Ends, w.report.DeadByReason)
}

func (w *world) run() {
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
	endPeople := w.startPeople()
	defer endPeople()
	strikes := must.Catch(w.strike)
	if strikes == nil {
		w.untilAllHit()
	}
	stopLoad()
	must.OK(errors.Join(strikes, <-done))
	if w.load.next >= len(w.load.orders) {
		w.violation("the load ended before the faults did: all %d orders were published", w.load.next)
	}
	endPeople()
	if w.o.Phase.people {
		w.tidy()
	}
	w.soak.judge()
	w.settle()
	const slack = 40 // a connection of the pool more or less has one or two
	for i, now := range w.fleet.metric("go_goroutines") {
		if now == 0 || now > fresh[i]+slack {
			w.violation("daemon %d has %d goroutines at rest, the first one had %d", i, now, fresh[i])
		}
	}
	w.fleet.drain()
	w.judge()
}

// settle waits until nothing is left to do.
//
// It waits for RabbitMQ too: a queue that was moving what expired into another whose leader is lost sends that again
// after dead_letter_worker_publisher_confirm_timeout, three minutes unless it is set, and looks for such messages only
// as often as that.
func (w *world) settle() {
	began := time.Now()
	if err := must.Catch(func() { w.wait(2*3*time.Minute+time.Minute, "not at rest", w.idle) }); err != nil {
		w.violation("after the last fault: %v", err)
	}
	w.say("at rest %v after the last fault", time.Since(began).Round(time.Millisecond))
}

// judge asks the oracle, after all daemons have ended.
func (w *world) judge() {
	if err := must.Catch(w.quiet); err != nil {
		w.violation("after the daemons have ended: %v", err)
	}
	w.agree()
	// A killed or frozen process costs each message that its lanes had claimed one attempt. A message that several faults
	// hit pays for each; all together pay for no more than there were.
	w.check(maxAttempts - 1)
	if spent, charged := w.report.AttemptsSpent, w.counted(charges); spent > charged*lanes*claimAtOnce {
		w.violation("%d attempts were spent, but only %d faults could cost %d for each of %d lanes", spent, charged,
			claimAtOnce, lanes)
	}
	if n := w.number("SELECT COUNT(*) FROM consumer_log WHERE msg_key LIKE 'unknown-%' AND consumer_status <> 3"); n > 0 {
		w.violation("%d messages of unknown orders are not dead", n)
	}
}

// check asks the oracle, which asks the first node of RabbitMQ: one that was in the minority is away until it has seen
// that it is not any more.
func (w *world) check(attempts int) {
	must.OK(w.stack.RabbitMQ.Await())
	allowed := oracle.Allowance{Attempts: attempts}
	w.report = must.Get(w.oracle.Check(w.ctx, w.before, w.load.ledger, allowed))
}

// Kinds are the names of all kinds of faults.
func Kinds() (names []string) {
	for _, k := range kinds() {
		names = append(names, k.name)
	}
	return names
}
