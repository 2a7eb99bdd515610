package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
)

const replayHelp = `Put dead letters back on the main queue, with all their attempts again. Say which: --all, or one or
more of the conditions, which must all hold. Taken are the letters that are in the queue when it begins, the oldest
first; those that die again meanwhile wait for the next replay. Cure the cause first, and restart the daemons when their
settings changed.

It looks what becomes of them: at most --window letters wait for the daemon at a time, and in the end it waits for the
last ones while a daemon consumes and gets on. With --max-failures it stops when the cause is not cured after all.
--no-wait replays at full speed and looks at nothing.

It may be interrupted at any time and run again: the letters in hand are finished, nothing is lost and nothing happens
twice. The exit code is 1 when a chosen letter stays in the queue, the list says why, when no letter has a --key, and
when a letter with a --key is dead again at the end. A letter that was replayed ROLLBACKD_MAX_REPLAYS times is parked:
it stays until --force.

--from takes the letters from an export, whether or not the queue still has them. A body in it may be mended: the row
takes it, and the letter with the former one is dropped. The message must stay the one that it was: with a key from the
body's hash (ROLLBACKD_KEY_FROM) a mended body is another message; discard that letter and publish the message.`

func newDLQReplayCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Put dead letters back on the main queue",
		Long:  replayHelp,
		Example: "  " + a.name + ` dlq replay --reason exhausted --since 24h --dry-run
  ` + a.name + ` dlq replay --all --rate 50 --max-failures 20
  ` + a.name + " dlq replay --from mended.ndjson",
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	filter := addFilterFlags(cmd)
	flags := cmd.Flags()
	all := flags.Bool("all", false, "choose all letters")
	limit := flags.Int("limit", 0, "replay at most so many; 0: no limit")
	by := addByFlag(cmd)
	var o deadletter.ReplayOptions
	flags.BoolVar(&o.DryRun, "dry-run", false, "change nothing, count what would be done")
	flags.BoolVar(&o.Force, "force", false, "also letters whose row is gone and that are older than "+
		"ROLLBACKD_LOG_RETENTION, or whose key another body had: they may have had their effect, which then happens again; "+
		"and letters that were replayed ROLLBACKD_MAX_REPLAYS times")
	flags.BoolVar(&o.Discarded, "discarded", false, "also letters whose identity was discarded")
	flags.Float64Var(&o.Rate, "rate", 0, "replay at most so many per second; 0: as many as can be")
	flags.IntVar(&o.Window, "window", 500, "at most so many replayed letters wait for the daemon at a time")
	flags.IntVar(&o.MaxFailures, "max-failures", 0, "stop when so many of the replayed letters have failed again, or "+
		"are dead again; 0: only count them")
	why := flags.String("why", "", "the reason, for whoever asks later")
	noWait := flags.Bool("no-wait", false, "full speed: do not look what becomes of the letters")
	from := flags.String("from", "", "take the letters from this FILE, an export; - is the standard input")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.choose(time.Now(), *all || *from != "" && !filter.narrow(), *limit)
		if err == nil {
			err = a.checkSource(f, *from)
		}
		if err == nil {
			err = checkPace(&o, *noWait, flags.Changed("window"))
		}
		if err != nil {
			return err
		}
		lines, closeLines, err := a.openInput(*from)
		if err != nil {
			return err
		}
		defer closeLines()
		asked := operator.Request{
			Kind: operator.KindReplay, Filter: operator.FilterOf(f), Why: operator.Plain(*why), Force: o.Force, Rate: o.Rate,
			Window: o.Window, MaxFailures: o.MaxFailures, From: *from, Discarded: o.Discarded, Limit: *limit,
		}
		return a.moveLetters(cmd.Context(), out, by.name(), o.DryRun, asked, func(ctx context.Context,
			letters *deadletter.Letters, who string, progress func(deadletter.Progress)) (deadletter.Result, error) {
			o.By, o.Progress = who, progress
			if *from != "" {
				return letters.ReplayFrom(ctx, *from, lines, f, o)
			}
			return letters.Replay(ctx, f, o)
		})
	}
	return cmd
}

// checkSource refuses to look in the queue for what is never there.
func (a *app) checkSource(f deadletter.Filter, from string) error {
	if from == "" && slices.Contains(f.Reasons, dedup.ReasonEffectUnknown) {
		return usageErrorf("--reason %s: the consumer before rollbackd left these open, and no queue has a letter of them; "+
			"'%s dlq export --reason %s -o FILE', then --from FILE", dedup.ReasonEffectUnknown, a.name,
			dedup.ReasonEffectUnknown)
	}
	return nil
}

// checkPace refuses what contradicts itself among the flags that say how fast a replay goes and when it stops.
func checkPace(o *deadletter.ReplayOptions, noWait, windowGiven bool) error {
	switch {
	case noWait && (o.MaxFailures != 0 || windowGiven):
		return usageErrorf("--no-wait looks at nothing: without --max-failures and --window")
	case o.Window < 1 || o.Window > deadletter.MaxWindow:
		return usageErrorf("--window %d: want 1 to %d", o.Window, deadletter.MaxWindow)
	case o.MaxFailures < 0:
		return usageErrorf("--max-failures %d is negative", o.MaxFailures)
	case !(o.Rate >= 0) || math.IsInf(o.Rate, 0):
		return usageErrorf("--rate %v: want 0 or more letters per second", o.Rate)
	}
	if noWait {
		o.Window = 0
	}
	return nil
}

// openInput opens a file, or the standard input for "-".
func (a *app) openInput(path string) (io.Reader, func(), error) {
	if path == "" || path == "-" {
		return a.stdin, func() {}, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, usageErrorf("the letters: %w", err)
	}
	return file, func() { _ = file.Close() }, nil
}

func newDLQDiscardCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "discard",
		Short: "End dead letters for good",
		Long: `End dead letters for good: they leave the queue, their rows say discarded, by whom and why, and every further
copy of their messages is acked without an effect. Which letters is said as for replay.

--from takes them from an export, whether or not the queue has them: of each line only tag and key are read.`,
		Example: "  " + a.name + ` dlq discard --key 20261121-0001 --why "a test order"`,
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	filter := addFilterFlags(cmd)
	flags := cmd.Flags()
	all := flags.Bool("all", false, "choose all letters")
	limit := flags.Int("limit", 0, "discard at most so many; 0: no limit")
	by := addByFlag(cmd)
	var o deadletter.DiscardOptions
	flags.BoolVar(&o.DryRun, "dry-run", false, "change nothing, count what would be done")
	flags.StringVar(&o.Why, "why", "", "the reason, for whoever asks later; required")
	from := flags.String("from", "", "take the letters from this FILE, an export; - is the standard input")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.choose(time.Now(), *all || *from != "" && !filter.narrow(), *limit)
		if err == nil {
			err = a.checkSource(f, *from)
		}
		if err != nil {
			return err
		}
		if o.Why = operator.Plain(o.Why); o.Why == "" {
			return usageErrorf("--why is missing: say why these letters may end without an effect")
		}
		lines, closeLines, err := a.openInput(*from)
		if err != nil {
			return err
		}
		defer closeLines()
		asked := operator.Request{
			Kind: operator.KindDiscard, Filter: operator.FilterOf(f), Why: o.Why, From: *from, Limit: *limit,
		}
		return a.moveLetters(cmd.Context(), out, by.name(), o.DryRun, asked, func(ctx context.Context,
			letters *deadletter.Letters, who string, progress func(deadletter.Progress)) (deadletter.Result, error) {
			o.By, o.Progress = who, progress
			if *from != "" {
				return letters.DiscardFrom(ctx, *from, lines, f, o)
			}
			return letters.Discard(ctx, f, o)
		})
	}
	return cmd
}

// moveLetters runs a replay or a discard as an act, and shows what it did, also when it ended early.
func (a *app) moveLetters(
	ctx context.Context, out *output, who string, dry bool, asked operator.Request,
	move func(ctx context.Context, letters *deadletter.Letters, who string, progress func(deadletter.Progress)) (
		deadletter.Result, error),
) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	db, closeDB, err := a.openDatabase(ctx, cfg, "dlq")
	if err != nil {
		return err
	}
	defer closeDB()
	records, err := a.newLog(ctx, cfg, db)
	if err != nil {
		return err
	}
	letters, err := newLetters(cfg, records, "dlq")
	if err != nil {
		return err
	}
	d, err := a.openDesk(cfg, db, records)
	if err != nil {
		return err
	}
	progress := a.newProgress(time.Now())
	var res deadletter.Result
	err = a.act(ctx, d, who, dry, operator.TaskRequest{Kind: asked.Kind, Why: asked.Why, Detail: asked}, func(
		ctx context.Context, task operator.Task) (operator.Result, error) {
		var err error
		res, err = move(ctx, letters, task.By, func(p deadletter.Progress) {
			progress.show(p)
			task.Letters(p)
		})
		return operator.ResultOf(res), err
	})
	progress.end()
	if err != nil && res.Seen == 0 {
		return a.lettersError(cfg, err)
	}
	printErr := out.render(a.stdout, res, resultTable(res))
	if out.chosen == outputTable {
		a.explainLeft(res.Left)
	}
	if err != nil {
		return errors.Join(printErr, a.lettersError(cfg, err))
	}
	return errors.Join(printErr, a.undone(letters.Queue(), res, len(asked.Filter.Keys) > 0))
}

// undone is the error of a run that did less than it was asked to; named says that the letters were, by their keys.
func (a *app) undone(queue string, res deadletter.Result, named bool) error {
	var errs []error
	if res.Others > 0 {
		fmt.Fprintf(a.stderr, "%s: somebody else was reading %s (a daemon that replays by itself, reconcile, another "+
			"replay): letters that it held were not seen; run it again\n", a.name, queue)
	}
	if res.Found == 0 {
		fmt.Fprintf(a.stderr, "%s: %s is empty; if '%s dlq list' has dead letters all the same, they were purged or moved: "+
			"'%s reconcile'\n", a.name, queue, a.name, a.name)
	}
	if res.FailedAgain > 0 {
		fmt.Fprintf(a.stderr, "%s: what failed again may have attempts left: '%s log list --status failed' and '%s dlq "+
			"list' show it\n", a.name, a.name, a.name)
	}
	if n := len(res.NotFound); n > 0 {
		for _, key := range res.NotFound[:min(n, maxShown)] {
			fmt.Fprintf(a.stderr, "%s: no letter in %s has key %s and fulfils the other conditions; '%s log explain' says "+
				"what became of it; if its row is dead, the letter was purged or moved: '%s reconcile'\n", a.name, queue,
				printable(key), a.name, a.name)
		}
		errs = append(errs, fmt.Errorf("keys that no letter has: %d", n))
	}
	if n := len(res.Left); n > 0 {
		errs = append(errs, fmt.Errorf("chosen letters that stay in the queue: %d", n))
	}
	if n := res.DeadAgain; named && n > 0 {
		errs = append(errs, fmt.Errorf("letters with a --key that are dead again: %d; '%s dlq show' says why", n, a.name))
	}
	return errors.Join(errs...)
}
