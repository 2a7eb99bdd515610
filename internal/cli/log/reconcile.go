package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

var reconcileCommand = command.Command{
	Use:   "reconcile",
	Short: "Compare the consumer log with dead letters and stock, and say what mends it",
	Long: `Compare the consumer log with the dead-letter queue and with the reservations, show what disagrees and the
command that mends it. The exit code is 1 when something does. It may run at any time: whatever disagrees is looked at
again two seconds later, and what has moved meanwhile is left out.

Without --adopt and --republish nothing is changed. The letters are read and given back to their places, which RabbitMQ
counts as one delivery of the million that the queue allows; other readers do not see them meanwhile.

With --expected it says instead where the messages are that a SELECT in a file says should have come: applied, on their
way, dead, or never seen; docs/outbox.md says how to write it. It reads in pieces and locks nothing. With --publish it
goes through them a second time and puts what was never seen into the outbox. The exit code is 1 when some did not come.

What it cannot see: a success row keeps no body, so only where the key is the order's number is it compared with what
the order still has reserved; and a release that is older than ROLLBACKD_LOG_RETENTION has no row any more, rightly.`,
	Flags: func(f *command.Flags) command.Work {
		var o operator.Reconciliation
		f.BoolVar(&o.Adopt, "adopt", false, "file letters without a row as dead, and write success rows again that "+
			"released reservations prove")
		f.BoolVar(&o.Republish, "republish", false, "send messages again, from their rows, that have no copy any more")
		f.BoolVar(&o.Force, "force", false, "adopt also letters that are older than ROLLBACKD_LOG_RETENTION, or whose "+
			"key another body had: they may have had their effect. With --publish: also while messages wait in the main "+
			"queue, when bodies differ from what was applied, and what has no created_at")
		f.StringVar(&o.By, "by", "", "who mends, for the story of the rows (default: the user's name)")
		why := f.String("why", "", "the reason to mend, for whoever asks later")
		f.DurationVar(&o.Overdue, "overdue", time.Hour, "how long after its lease or due time an open row counts")
		f.StringArrayVar(&o.Except, "except-tag", nil, "releases by this rollback_tag are a service's own, not "+
			"rollbackd's; may be repeated")
		noStock := f.Bool("no-stock", false, "leave the reservations out")
		file := f.String("expected", "", "say where the messages are that the SELECT in this file names, and no more")
		publish := f.Bool("publish", false, "with --expected: put what was never seen into the outbox")
		var limit int
		f.Limit(&limit, 20, "show at most so many of a kind; 0: all. Without --expected -o json has all")
		f.Check(func() error {
			return cmp.Or(command.RefuseIf(o.Overdue <= 0, "--overdue %v must be more than 0", o.Overdue),
				command.RefuseIf(o.Force && !o.Adopt && !*publish, "--force goes with --adopt or --publish"),
				command.RefuseIf(*publish && *file == "" || *file != "" && (o.Adopt || o.Republish), "--publish goes with "+
					"--expected; that excludes --adopt and --republish"))
		})
		return func(ctx context.Context, c *command.Call) error {
			o.By = cmp.Or(o.By, command.Person())
			if *file != "" {
				return expected(ctx, c, *file, o.By, *why, operator.Expectation{Publish: *publish, Force: o.Force, Keep: limit})
			}
			report, err := reconcile(ctx, c, o, *noStock, *why)
			if err != nil && len(report.Findings) == 0 {
				return err
			}
			printErr := c.Print(withCommands(report, c.Program, time.Now()), func(p *command.Page) {
				writeReport(p, report, limit, c.Program)
			})
			return errors.Join(printErr, c.Hinted(err), reportError(report))
		}
	},
}

func reconcile(ctx context.Context, c *command.Call, o operator.Reconciliation, noStock bool, why string) (
	report operator.Report, err error,
) {
	asked := mending{Adopt: o.Adopt, Republish: o.Republish, Force: o.Force}
	err = c.Act(ctx, o.By, !o.Adopt && !o.Republish, operator.TaskRequest{
		Kind: operator.KindMend, Why: why, Detail: asked,
	}, func(ctx context.Context, task operator.Task) (operator.Result, error) {
		c.SayUnknownGroup(ctx)
		o.Lookup, o.Letters, o.Retention = c.Lookup, c.Letters, c.Config.Retention()
		if noStock {
			o.OrderOf = nil
		}
		o.By, o.Progress = task.By, func(what string, seen int) {
			c.Progress.Count(seen, what)
			task.Progress(what, seen)
		}
		var err error
		report, err = o.Run(ctx)
		return operator.Result{Mended: len(report.Findings) - report.Open(), LeftCount: report.Open()}, err
	})
	return report, err
}

// mending is what was asked for, as the act has it.
type mending struct {
	Adopt     bool `json:"adopt,omitempty"`
	Republish bool `json:"republish,omitempty"`
	Force     bool `json:"force,omitempty"`
}

func reportError(r operator.Report) error {
	switch n := r.Open(); {
	case n > 0:
		return fmt.Errorf("disagreements: %d", n)
	case len(r.Unclear) > 0:
		return errors.New("not everything could be compared")
	}
	return nil
}

// report tells of a report, kind by kind.
func writeReport(p *command.Page, r operator.Report, limit int, program string) {
	for _, kind := range operator.FindingKinds() {
		writeKind(p, r, kind, limit, program)
	}
	for _, unclear := range r.Unclear {
		p.Addf("%s\n\n", unclear)
	}
	if r.TooOld > 0 {
		p.Addf("Releases older than ROLLBACKD_LOG_RETENTION, whose rows may be deleted by now: %d. Nothing follows from "+
			"them.\n", r.TooOld)
	}
	word := "All agree"
	if len(r.Findings) > 0 || len(r.Unclear) > 0 {
		word = "Looked at"
	}
	p.Addf("%s: %d letters, %d rows that are open or dead, %d reservations.\n", word, r.Letters, r.Rows, r.Reservations)
}

// kind adds the findings of one kind and what mends them; a command that mends several is written once.
func writeKind(p *command.Page, r operator.Report, kind operator.FindingKind, limit int, program string) {
	t := command.Table{Header: []string{"TAG", "KEY", "STATUS", "SINCE", "ORDER", "RESERVATION", "RESULT"}}
	var commands []string
	n := 0
	for _, f := range r.Findings {
		if f.Kind != kind {
			continue
		}
		if n++; limit > 0 && n > limit {
			continue
		}
		since := ""
		if f.Since != nil {
			since = screen.Date(*f.Since)
		}
		t.Add(f.Tag, f.Key, f.Status, since, f.Order, f.Reservation(), f.Outcome())
		if cure := f.Cure(program, time.Now()); !f.Mended && !slices.Contains(commands, cure) {
			commands = append(commands, cure)
		}
	}
	if n == 0 {
		return
	}
	p.Addf("%s: %d. %s\n\n", kind, n, kind.Means())
	p.Table(t)
	if limit > 0 && n > limit {
		p.Addf("and %d more; --limit 0 shows all\n", n-limit)
	}
	if len(commands) > 0 {
		p.Addf("\nWhat mends it:\n")
	}
	for _, c := range commands {
		p.Addf("  %s\n", screen.Printable(c)) // keys may turn the writing round; -o json has them as they are
	}
	p.Addf("\n")
}

// curedReport is a report whose findings say the command that mends them.
type curedReport struct {
	operator.Report
	Findings []curedFinding `json:"findings"`
}

type curedFinding struct {
	operator.Finding
	Cure string `json:"cure,omitempty"`
}

func withCommands(r operator.Report, program string, now time.Time) curedReport {
	c := curedReport{r, []curedFinding{}}
	for _, f := range r.Findings {
		one := curedFinding{Finding: f}
		if !f.Mended {
			one.Cure = f.Cure(program, now)
		}
		c.Findings = append(c.Findings, one)
	}
	return c
}

// expected says where the messages are that a file's SELECT says should have come.
func expected(ctx context.Context, c *command.Call, file, by, why string, o operator.Expectation) (err error) {
	if o.Query, err = c.Query(file, "--expected"); err != nil {
		return err
	}
	var e operator.Expected
	err = c.Act(ctx, by, !o.Publish, operator.TaskRequest{Kind: operator.KindExpected, Why: why,
		Detail: operator.ExpectedRequest{Publish: o.Publish, Force: o.Force},
	}, func(ctx context.Context, task operator.Task) (_ operator.Result, err error) {
		c.SayUnknownGroup(ctx)
		o.Lookup, o.Letters, o.Progress = c.Lookup, c.Letters, func(what string, seen int) {
			c.Progress.Draw(fmt.Sprintf("%d %s", seen, what), 0, 0)
			task.Progress(what, seen)
		}
		e, err = o.Run(ctx)
		return operator.Result{Retried: e.Put, LeftCount: e.Open}, err
	})
	if err != nil && e.Seen == 0 {
		return err
	}
	err = errors.Join(c.Print(e, func(p *command.Page) { writeExpected(p, e) }), c.Hinted(err))
	if e.Open > 0 {
		err = errors.Join(err, fmt.Errorf("messages that did not come: %d", e.Open))
	}
	return err
}

func writeExpected(p *command.Page, e operator.Expected) {
	where := command.Table{Header: []string{"MESSAGES", "WHERE", "MEANS"}}
	first := command.Table{Header: []string{"WHERE", "TAG", "KEY", "SINCE", "WHY"}}
	for _, f := range e.Found {
		where.Add(f.Count, f.Where, f.Means)
		for _, a := range f.First {
			first.Add(f.Where, a.Tag, a.Key, screen.Date(a.Since), screen.Shorten(a.Why, 200))
		}
	}
	p.Table(where)
	if len(first.Rows) > 0 {
		p.Addf("\n")
		p.Table(first)
	}
	p.Addf("\nThe SELECT names %s.", screen.Plural(e.Seen, "message"))
	if e.Queued > 0 {
		p.Addf(" The main queue holds %s.", screen.Plural(e.Queued, "message"))
	}
	p.Addf("\n")
}
