package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/reconcile"
)

func newReconcileCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reconcile",
		Short: "Compare the consumer log with dead letters and stock, and say what mends it",
		Long: `Compare the consumer log with the dead-letter queue and with the reservations, show what disagrees and the
command that mends it. The exit code is 1 when something does. It may run at any time: whatever disagrees is looked at
again two seconds later, and what has moved meanwhile is left out.

Without --adopt and --republish nothing is changed. The letters are read and given back to their places, which RabbitMQ
counts as one delivery of the million that the queue allows; other readers do not see them meanwhile.

What it cannot see: a success row keeps no body, so only where the key is the order's number is it compared with what
the order still has reserved; and a release that is older than ROLLBACKD_LOG_RETENTION has no row any more, rightly.`,
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	var o reconcile.Options
	flags := cmd.Flags()
	flags.BoolVar(&o.Adopt, "adopt", false, "file letters without a row as dead, and write success rows again that "+
		"released reservations prove")
	flags.BoolVar(&o.Republish, "republish", false, "send messages again, from their rows, that have no copy any more")
	flags.BoolVar(&o.Force, "force", false, "adopt also letters that are older than ROLLBACKD_LOG_RETENTION, or whose "+
		"key another body had: they may have had their effect")
	flags.StringVar(&o.By, "by", "", "who mends, for the story of the rows (default: the user's name)")
	why := flags.String("why", "", "the reason to mend, for whoever asks later")
	flags.DurationVar(&o.Overdue, "overdue", time.Hour, "how long after its lease or due time an open row counts")
	flags.StringArrayVar(&o.Except, "except-tag", nil, "releases by this rollback_tag are a service's own, not "+
		"rollbackd's; may be repeated")
	noStock := flags.Bool("no-stock", false, "leave the reservations out")
	limit := flags.Int("limit", 20, "show at most so many of a kind; 0: all. -o json has all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case o.Overdue <= 0:
			return usageErrorf("--overdue %v must be more than 0", o.Overdue)
		case o.Force && !o.Adopt:
			return usageErrorf("--force goes with --adopt")
		case *limit < 0:
			return usageErrorf("--limit %d is negative", *limit)
		}
		if o.By == "" {
			o.By = person()
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		report, err := a.reconcile(cmd.Context(), cfg, o, *noStock, *why)
		if err != nil && len(report.Findings) == 0 {
			return err
		}
		return errors.Join(a.showReport(report, out, *limit), err, reportError(report))
	}
	return cmd
}

func (a *app) reconcile(
	ctx context.Context, cfg config.Config, o reconcile.Options, noStock bool, why string,
) (reconcile.Report, error) {
	db, closeDB, err := a.openDatabase(ctx, cfg, "reconcile")
	if err != nil {
		return reconcile.Report{}, err
	}
	defer closeDB()
	if o.Records, err = a.newLog(ctx, cfg, db); err != nil {
		return reconcile.Report{}, err
	}
	a.sayUnknownGroup(ctx, o.Records, cfg.Group)
	if o.Letters, err = newLetters(cfg, o.Records, "reconcile"); err != nil {
		return reconcile.Report{}, err
	}
	d, err := a.openDesk(cfg, db, o.Records)
	if err != nil {
		return reconcile.Report{}, err
	}
	o.Group, o.Retention = cfg.Group, cfg.Retention()
	if cfg.Handler == config.HandlerStock && !noStock {
		o.DB = db
	}
	show := func(string, int) {}
	if onTerminal(a.stderr) {
		show = func(what string, seen int) { fmt.Fprintf(a.stderr, "\r%d %s        ", seen, what) }
		defer fmt.Fprintln(a.stderr)
	}
	var report reconcile.Report
	asked := mending{Adopt: o.Adopt, Republish: o.Republish, Force: o.Force}
	ask := operator.TaskRequest{Kind: operator.KindMend, Why: why, Detail: asked}
	err = a.act(ctx, d, o.By, !o.Adopt && !o.Republish, ask,
		func(ctx context.Context, task operator.Task) (operator.Result, error) {
			o.By, o.Progress = task.By, func(what string, seen int) {
				show(what, seen)
				task.Progress(what, seen)
			}
			var err error
			report, err = reconcile.Run(ctx, o)
			return operator.Result{Mended: len(report.Findings) - report.Open(), LeftCount: report.Open()}, err
		})
	return report, a.lettersError(cfg, err)
}

// mending is what was asked for, as the act has it.
type mending struct {
	Adopt     bool `json:"adopt,omitempty"`
	Republish bool `json:"republish,omitempty"`
	Force     bool `json:"force,omitempty"`
}

func reportError(r reconcile.Report) error {
	switch n := r.Open(); {
	case n > 0:
		return fmt.Errorf("disagreements: %d", n)
	case len(r.Unclear) > 0:
		return errors.New("not everything could be compared")
	}
	return nil
}

func (a *app) showReport(r reconcile.Report, out *output, limit int) error {
	if out.chosen == outputJSON {
		return writeJSON(a.stdout, withCommands(r, a.name, time.Now()))
	}
	var text bytes.Buffer
	for _, kind := range reconcile.Kinds() {
		if err := writeKind(&text, r, kind, limit, a.name, time.Now()); err != nil {
			return err
		}
	}
	for _, unclear := range r.Unclear {
		fmt.Fprintf(&text, "%s\n\n", unclear)
	}
	if r.TooOld > 0 {
		fmt.Fprintf(&text, "Releases older than ROLLBACKD_LOG_RETENTION, whose rows may be deleted by now: %d. Nothing "+
			"follows from them.\n", r.TooOld)
	}
	word := "All agree"
	if len(r.Findings) > 0 || len(r.Unclear) > 0 {
		word = "Looked at"
	}
	fmt.Fprintf(&text, "%s: %d letters, %d rows that are open or dead, %d reservations.\n", word, r.Letters, r.Rows,
		r.Reservations)
	if _, err := text.WriteTo(a.stdout); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}

// writeKind writes the findings of one kind and what mends them; a command that mends several is written once.
func writeKind(w io.Writer, r reconcile.Report, kind reconcile.Kind, limit int, program string, now time.Time) error {
	t := table{header: []string{"TAG", "KEY", "STATUS", "SINCE", "ORDER", "RESERVATION", "RESULT"}}
	var commands []string
	seen := map[string]bool{}
	n := 0
	for _, f := range r.Findings {
		if f.Kind != kind {
			continue
		}
		n++
		if limit > 0 && n > limit {
			continue
		}
		since := ""
		if f.Since != nil {
			since = f.Since.Format(time.RFC3339)
		}
		t.add(f.Tag, f.Key, f.Status, since, f.Order, f.Reservation(), f.Outcome())
		if cure := f.Cure(program, now); !f.Mended && !seen[cure] {
			seen[cure] = true
			commands = append(commands, cure)
		}
	}
	if n == 0 {
		return nil
	}
	fmt.Fprintf(w, "%s: %d. %s\n\n", kind, n, kind.Means())
	if err := writeTable(w, t); err != nil {
		return err
	}
	if limit > 0 && n > limit {
		fmt.Fprintf(w, "and %d more; --limit 0 shows all\n", n-limit)
	}
	if len(commands) > 0 {
		fmt.Fprint(w, "\nWhat mends it:\n")
	}
	for _, c := range commands {
		fmt.Fprintf(w, "  %s\n", printable(c)) // keys may turn the writing round; -o json has them as they are
	}
	_, err := io.WriteString(w, "\n")
	return err
}
