package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/operator"
)

var reconcileCommand = command{
	use:   "reconcile",
	short: "Compare the consumer log with dead letters and stock, and say what mends it",
	long: `Compare the consumer log with the dead-letter queue and with the reservations, show what disagrees and the
command that mends it. The exit code is 1 when something does. It may run at any time: whatever disagrees is looked at
again two seconds later, and what has moved meanwhile is left out.

Without --adopt and --republish nothing is changed. The letters are read and given back to their places, which RabbitMQ
counts as one delivery of the million that the queue allows; other readers do not see them meanwhile.

What it cannot see: a success row keeps no body, so only where the key is the order's number is it compared with what
the order still has reserved; and a release that is older than ROLLBACKD_LOG_RETENTION has no row any more, rightly.`,
	flags: func(f *flags) work {
		var o operator.Reconciliation
		f.BoolVar(&o.Adopt, "adopt", false, "file letters without a row as dead, and write success rows again that "+
			"released reservations prove")
		f.BoolVar(&o.Republish, "republish", false, "send messages again, from their rows, that have no copy any more")
		f.BoolVar(&o.Force, "force", false, "adopt also letters that are older than ROLLBACKD_LOG_RETENTION, or whose "+
			"key another body had: they may have had their effect")
		f.StringVar(&o.By, "by", "", "who mends, for the story of the rows (default: the user's name)")
		why := f.String("why", "", "the reason to mend, for whoever asks later")
		f.DurationVar(&o.Overdue, "overdue", time.Hour, "how long after its lease or due time an open row counts")
		f.StringArrayVar(&o.Except, "except-tag", nil, "releases by this rollback_tag are a service's own, not "+
			"rollbackd's; may be repeated")
		noStock := f.Bool("no-stock", false, "leave the reservations out")
		limit := f.limit(20, "show at most so many of a kind; 0: all. -o json has all")
		f.check(func() error {
			switch {
			case o.Overdue <= 0:
				return usageErrorf("--overdue %v must be more than 0", o.Overdue)
			case o.Force && !o.Adopt:
				return usageErrorf("--force goes with --adopt")
			}
			return nil
		})
		return func(ctx context.Context, c *call) error {
			o.By = cmp.Or(o.By, person())
			report, err := c.reconcile(ctx, o, *noStock, *why)
			if err != nil && len(report.Findings) == 0 {
				return err
			}
			printErr := c.print(withCommands(report, c.name, time.Now()), func(p *page) {
				p.report(report, *limit, c.name)
			})
			return errors.Join(printErr, c.hinted(err), reportError(report))
		}
	},
}

func (c *call) reconcile(ctx context.Context, o operator.Reconciliation, noStock bool, why string) (
	report operator.Report, err error,
) {
	asked := mending{Adopt: o.Adopt, Republish: o.Republish, Force: o.Force}
	err = c.act(ctx, o.By, !o.Adopt && !o.Republish, operator.TaskRequest{
		Kind: operator.KindMend, Why: why, Detail: asked,
	}, func(ctx context.Context, task operator.Task) (operator.Result, error) {
		c.sayUnknownGroup(ctx)
		o.Lookup, o.Letters, o.Retention = c.Lookup, c.Letters, c.cfg.Retention()
		if noStock {
			o.OrderOf = nil
		}
		o.By, o.Progress = task.By, func(what string, seen int) {
			c.progress.count(seen, what)
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
func (p *page) report(r operator.Report, limit int, program string) {
	for _, kind := range operator.FindingKinds() {
		p.kind(r, kind, limit, program)
	}
	for _, unclear := range r.Unclear {
		p.f("%s\n\n", unclear)
	}
	if r.TooOld > 0 {
		p.f("Releases older than ROLLBACKD_LOG_RETENTION, whose rows may be deleted by now: %d. Nothing follows from "+
			"them.\n", r.TooOld)
	}
	word := "All agree"
	if len(r.Findings) > 0 || len(r.Unclear) > 0 {
		word = "Looked at"
	}
	p.f("%s: %d letters, %d rows that are open or dead, %d reservations.\n", word, r.Letters, r.Rows, r.Reservations)
}

// kind adds the findings of one kind and what mends them; a command that mends several is written once.
func (p *page) kind(r operator.Report, kind operator.FindingKind, limit int, program string) {
	t := table{header: []string{"TAG", "KEY", "STATUS", "SINCE", "ORDER", "RESERVATION", "RESULT"}}
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
			since = date(*f.Since)
		}
		t.add(f.Tag, f.Key, f.Status, since, f.Order, f.Reservation(), f.Outcome())
		if cure := f.Cure(program, time.Now()); !f.Mended && !slices.Contains(commands, cure) {
			commands = append(commands, cure)
		}
	}
	if n == 0 {
		return
	}
	p.f("%s: %d. %s\n\n", kind, n, kind.Means())
	p.table(t)
	if limit > 0 && n > limit {
		p.f("and %d more; --limit 0 shows all\n", n-limit)
	}
	if len(commands) > 0 {
		p.f("\nWhat mends it:\n")
	}
	for _, c := range commands {
		p.f("  %s\n", printable(c)) // keys may turn the writing round; -o json has them as they are
	}
	p.f("\n")
}
