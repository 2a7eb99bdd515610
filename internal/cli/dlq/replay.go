package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

const replayHelp = `Put dead letters back on the main queue, with all their attempts again. Say which: --all, or one or
more of the conditions, which must all hold. Taken are the letters that are in the queue when it begins, the oldest
first; those that die again meanwhile wait for the next replay. With --order, --sku or --body, and without --key or
--discarded, they are taken by their rows, as 'dlq list' finds them, and the queue is left alone. Cure the cause first,
and restart the daemons when their settings changed.

It looks what becomes of them: at most --window letters wait for the daemon at a time, and in the end it waits for the
last ones while a daemon consumes and gets on. With --max-failures it stops when the cause is not cured after all.
--no-wait replays at full speed and looks at nothing.

It may be interrupted at any time and run again: the letters in hand are finished, nothing is lost and nothing happens
twice. The exit code is 1 when a chosen letter stays in the queue, the list says why, when no letter has a --key, and
when a letter with a --key is dead again at the end. A letter that was replayed ROLLBACKD_MAX_REPLAYS times is parked:
it stays until --force.

--rehearse asks a daemon that consumes and has pages for a rehearsal, and waits for it: each letter of the set, the
latest 10,000 at most, goes through the running handler by itself, in a transaction that is always rolled back. It says
how many would be applied, which error the others would meet, and how many rows of which tables would change. A handler
that acts outside MySQL (ROLLBACKD_HANDLER=http) cannot be rehearsed.

--from takes the letters from an export, whether or not the queue still has them. A body in it may be mended: the row
takes it, and the letter with the former one is dropped. The message must stay the one that it was: with a key from the
body's hash (ROLLBACKD_KEY_FROM) a mended body is another message; discard that letter and publish the message.`

var replayCommand = command.Command{
	Use:   "replay",
	Short: "Put dead letters back on the main queue",
	Long:  replayHelp,
	Example: `  PROGRAM dlq replay --reason exhausted --since 24h --dry-run
  PROGRAM dlq replay --reason exhausted --rehearse
  PROGRAM dlq replay --all --rate 50 --max-failures 20
  PROGRAM dlq replay --from mended.ndjson`,
	Flags: func(f *command.Flags) command.Work {
		m := newMoving(f, operator.KindReplay)
		f.StringVar(&m.Why, "why", "", command.WhyHelp)
		f.BoolVar(&m.Force, "force", false, "also letters whose row is gone and that are older than "+
			"ROLLBACKD_LOG_RETENTION, or whose key another body had: they may have had their effect, which then happens "+
			"again; and letters that were replayed ROLLBACKD_MAX_REPLAYS times")
		f.BoolVar(&m.Discarded, "discarded", false, "also letters whose identity was discarded")
		f.Float64Var(&m.Rate, "rate", 0, "replay at most so many per second; 0: as many as can be")
		f.IntVar(&m.Window, "window", 500, "at most so many replayed letters wait for the daemon at a time")
		f.IntVar(&m.MaxFailures, "max-failures", 0, "stop when so many of the replayed letters have failed again, or "+
			"are dead again; 0: only count them")
		rehearse := f.Bool("rehearse", false, "change nothing: a daemon runs each letter through its handler in a "+
			"transaction that is rolled back, and says what would become of it")
		noWait := f.Bool("no-wait", false, "full speed: do not look what becomes of the letters")
		f.Check(func() error {
			r := &m.Request
			err := cmp.Or(
				command.RefuseIf(*noWait && (r.MaxFailures != 0 || f.Changed("window")), "--no-wait looks at nothing: without "+
					"--max-failures and --window"),
				command.RefuseIf(r.Window < 1 || r.Window > deadletter.MaxWindow, "--window %d: want 1 to %d", r.Window,
					deadletter.MaxWindow),
				command.RefuseIf(r.MaxFailures < 0, "--max-failures %d is negative", r.MaxFailures),
				command.RefuseIf(!(r.Rate >= 0) || math.IsInf(r.Rate, 0), "--rate %v: want 0 or more letters per second", r.Rate))
			if *noWait {
				r.Window = 0
			}
			return err
		})
		f.Check(func() error {
			others := strings.Fields("from limit dry-run why discarded rate window max-failures no-wait")
			others = slices.DeleteFunc(others, func(name string) bool { return !f.Changed(name) })
			return command.RefuseIf(*rehearse && len(others) > 0, "--rehearse replays nothing, and takes what the log has of a "+
				"set: without --%s", strings.Join(others, ", --"))
		})
		return func(ctx context.Context, c *command.Call) error {
			if *rehearse {
				return m.rehearse(ctx, c)
			}
			return m.run(ctx, c)
		}
	},
}

var discardCommand = command.Command{
	Use:   "discard",
	Short: "End dead letters for good",
	Long: `End dead letters for good: they leave the queue, their rows say discarded, by whom and why, and every further
copy of their messages is acked without an effect. Which letters is said as for replay.

--from takes them from an export, whether or not the queue has them: of each line only tag and key are read.`,
	Example: `  PROGRAM dlq discard --key 20261121-0001 --why "a test order"`,
	Flags: func(f *command.Flags) command.Work {
		m := newMoving(f, operator.KindDiscard)
		f.StringVar(&m.Why, "why", "", command.WhyHelp+"; required")
		f.Check(func() error {
			return command.RefuseIf(operator.Plain(m.Why) == "", "--why is missing: say why these letters may end "+
				"without an effect")
		})
		return m.run
	},
}

// moving is a replay or a discard.
type moving struct {
	operator.Request

	dryRun *bool
	by     func() string
}

func newMoving(f *command.Flags, kind operator.Kind) *moving {
	m := &moving{Request: operator.Request{Kind: kind}, by: f.By()}
	choose(f, &m.Request)
	f.Limit(&m.Limit, 0, string(kind)+" at most so many; 0: no limit")
	m.dryRun = f.Bool("dry-run", false, "change nothing, count what would be done")
	return m
}

// mostMemory is how many bytes a run may take before it collects its garbage more often: large letters are many then,
// and it may share a container with a daemon.
const mostMemory = 192 << 20

// run does it as an act, and shows what it did, also when it ended early.
func (m *moving) run(ctx context.Context, c *command.Call) error {
	lines, err := c.Input(m.From, "the letters")
	if err != nil {
		return err
	}
	command.CollectSeldom(mostMemory)
	r := m.Request
	r.Why, r.Filter.Limit = operator.Plain(r.Why), r.Limit
	var of deadletter.Selection = r.Filter
	if r.From != "" {
		of = deadletter.File{Name: r.From, Lines: lines, Filter: r.Filter}
	}
	var res deadletter.Result
	err = c.Act(ctx, m.by(), *m.dryRun, operator.TaskRequest{Kind: r.Kind, Why: r.Why, Detail: r}, func(
		ctx context.Context, task operator.Task) (_ operator.Result, err error) {
		res, err = r.Do(ctx, c.Letters, of, task.By, *m.dryRun, func(p deadletter.Progress) {
			c.Progress.Show(p)
			task.Letters(p)
		})
		return operator.ResultOf(res), err
	})
	if err != nil && res.Seen == 0 {
		return err
	}
	printErr := c.Render(res, resultTable(res))
	if c.Output.Chosen == command.FormTable {
		explainLeft(c, res.Left)
	}
	if err != nil {
		return errors.Join(printErr, c.Hinted(err))
	}
	return errors.Join(printErr, undone(c, res, len(r.Filter.Keys) > 0))
}

// undone is the error of a run that did less than it was asked to; named says that the letters were, by their keys.
func undone(c *command.Call, res deadletter.Result, named bool) error {
	queue := c.Letters.Queue()
	var errs []error
	if res.Others > 0 {
		c.Say("somebody else was reading %s (a daemon that replays by itself, reconcile, another "+
			"replay): letters that it held were not seen; run it again", queue)
	}
	switch {
	case res.ByRows && res.Replayed+res.Discarded > 0 && !res.DryRun:
		c.Say("what lies of them in %s is stale, and dropped by a daemon that has pages, or by the next replay that comes by",
			queue)
	case res.ByRows && res.Found == 0:
		c.Say("no dead row has this; a letter without a row is found by --key or --all")
	case res.Found == 0:
		c.Say("%s is empty; if '%s dlq list' has dead letters all the same, they were purged or moved: "+
			"'%s reconcile'", queue, c.Program, c.Program)
	}
	if res.FailedAgain > 0 {
		c.Say("what failed again may have attempts left: '%s log list --status failed' and '%s dlq "+
			"list' show it", c.Program, c.Program)
	}
	if n := len(res.NotFound); n > 0 {
		for _, key := range res.NotFound[:min(n, command.MaxShown)] {
			c.Say("no letter in %s has key %s and fulfils the other conditions; '%s log explain' says "+
				"what became of it; if its row is dead, the letter was purged or moved: '%s reconcile'", queue,
				screen.Printable(key), c.Program, c.Program)
		}
		errs = append(errs, fmt.Errorf("keys that no letter has: %d", n))
	}
	if n := len(res.Left); n > 0 {
		errs = append(errs, fmt.Errorf("chosen letters that stay in the queue: %d", n))
	}
	if n := res.DeadAgain; named && n > 0 {
		errs = append(errs, fmt.Errorf("letters with a --key that are dead again: %d; '%s dlq show' says why", n, c.Program))
	}
	return errors.Join(errs...)
}

func resultTable(res deadletter.Result) command.Table {
	t := command.Table{Header: []string{"LETTERS", "OUTCOME"}}
	replayed, discarded := "replayed", "discarded"
	if res.DryRun {
		replayed, discarded = "would be replayed", "would be discarded"
	}
	t.Add(res.Found, "found")
	t.Count(res.Replayed, replayed)
	t.Count(res.Mended, "  of them with a mended body")
	t.Count(res.Applied, "  of them applied by now")
	t.Count(res.FailedAgain, "  of them failed again")
	t.Count(res.DeadAgain, "    and are dead again")
	t.Count(res.Unsettled, "  of them not processed yet")
	t.Count(res.Discarded, discarded)
	for _, reason := range slices.Sorted(maps.Keys(res.ByReason)) {
		t.Count(res.ByReason[reason], "  of them "+string(reason))
	}
	t.Count(res.Duplicates, "dropped: other copies of these messages")
	t.Count(res.Stale, "dropped: their messages had ended already")
	t.Count(res.NotSelected, "not chosen")
	t.Count(res.Later, "came after the beginning")
	t.Count(len(res.Left), "chosen, but stay")
	t.Count(res.Parked, "  of them parked")
	t.Count(res.Unseen, "not looked at: the run ended before")
	if res.DryRun {
		t.Add("-", "this was a dry run: nothing was changed")
	}
	return t
}

// whatNext says what to do about letters that stay.
var whatNext = map[deadletter.Why]string{
	deadletter.WhyInProgress:  "a worker has them right now: try again later",
	deadletter.WhyMoved:       "somebody changed the row at the same moment: try again",
	deadletter.WhyUnknown:     "the database's answer was lost: try again",
	deadletter.WhyUnpublished: "the main queue did not confirm the message: try again",
	deadletter.WhyOldRow: "published, but the row of the former identity could not be ended: try again, it is " +
		"only dropped then",
	deadletter.WhyUnacked: "done, but the ack was lost: the next replay drops them",
	deadletter.WhyTooOld: "the row is gone and they are older than ROLLBACKD_LOG_RETENTION, so they may have had " +
		"their effect: make sure that they had not, then use --force",
	deadletter.WhyKeyTaken: "another body had the key and its row is gone: make sure that this one may take effect " +
		"too, then use --force",
	deadletter.WhyParked: "they were replayed ROLLBACKD_MAX_REPLAYS times in vain: mend the cause, then use " +
		"--force; or discard them",
	deadletter.WhyCut: "the log keeps only a part of the message: replay it from the queue, or complete the " +
		"line; --force if only headers are missing and nobody needs them",
	deadletter.WhyBadLine: "mend the line",
	deadletter.WhyOtherIdentity: "the line's message is another one: discard the letter and publish the message, or " +
		"undo what changed its key",
	deadletter.WhyNewerStatus: "a newer version wrote the row: use that version",
	deadletter.WhyFailed:      "see the error",
}

// explainLeft says on stderr why letters stay, with some of their keys.
func explainLeft(c *command.Call, left []deadletter.Left) {
	groups := map[deadletter.Why][]deadletter.Left{}
	for _, l := range left {
		groups[l.Why] = append(groups[l.Why], l)
	}
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		c.Say("%d stay (%s), %s", len(groups[why]), why, whatNext[why])
		for _, l := range groups[why][:min(command.MaxShown, len(groups[why]))] {
			fmt.Fprintf(c.Stderr, "  %s %s %s\n", screen.Printable(l.Tag), screen.Printable(l.Key), screen.Printable(l.Error))
		}
		if n := len(groups[why]) - command.MaxShown; n > 0 {
			fmt.Fprintf(c.Stderr, "  and %d more; -o json lists all\n", n)
		}
	}
}
