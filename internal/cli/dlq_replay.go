package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/operator"
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

--from takes the letters from an export, whether or not the queue still has them. A body in it may be mended: the row
takes it, and the letter with the former one is dropped. The message must stay the one that it was: with a key from the
body's hash (ROLLBACKD_KEY_FROM) a mended body is another message; discard that letter and publish the message.`

var dlqReplayCommand = command{
	use:   "replay",
	short: "Put dead letters back on the main queue",
	long:  replayHelp,
	example: `  PROGRAM dlq replay --reason exhausted --since 24h --dry-run
  PROGRAM dlq replay --all --rate 50 --max-failures 20
  PROGRAM dlq replay --from mended.ndjson`,
	flags: func(f *flags) work {
		m := newMoving(f, operator.KindReplay)
		f.StringVar(&m.asked.Why, "why", "", whyHelp)
		f.BoolVar(&m.asked.Force, "force", false, "also letters whose row is gone and that are older than "+
			"ROLLBACKD_LOG_RETENTION, or whose key another body had: they may have had their effect, which then happens "+
			"again; and letters that were replayed ROLLBACKD_MAX_REPLAYS times")
		f.BoolVar(&m.asked.Discarded, "discarded", false, "also letters whose identity was discarded")
		f.Float64Var(&m.asked.Rate, "rate", 0, "replay at most so many per second; 0: as many as can be")
		f.IntVar(&m.asked.Window, "window", 500, "at most so many replayed letters wait for the daemon at a time")
		f.IntVar(&m.asked.MaxFailures, "max-failures", 0, "stop when so many of the replayed letters have failed again, or "+
			"are dead again; 0: only count them")
		noWait := f.Bool("no-wait", false, "full speed: do not look what becomes of the letters")
		f.check(func() error {
			r := &m.asked
			switch {
			case *noWait && (r.MaxFailures != 0 || f.Changed("window")):
				return usageErrorf("--no-wait looks at nothing: without --max-failures and --window")
			case r.Window < 1 || r.Window > deadletter.MaxWindow:
				return usageErrorf("--window %d: want 1 to %d", r.Window, deadletter.MaxWindow)
			case r.MaxFailures < 0:
				return usageErrorf("--max-failures %d is negative", r.MaxFailures)
			case !(r.Rate >= 0) || math.IsInf(r.Rate, 0):
				return usageErrorf("--rate %v: want 0 or more letters per second", r.Rate)
			case *noWait:
				r.Window = 0
			}
			return nil
		})
		return m.run
	},
}

var dlqDiscardCommand = command{
	use:   "discard",
	short: "End dead letters for good",
	long: `End dead letters for good: they leave the queue, their rows say discarded, by whom and why, and every further
copy of their messages is acked without an effect. Which letters is said as for replay.

--from takes them from an export, whether or not the queue has them: of each line only tag and key are read.`,
	example: `  PROGRAM dlq discard --key 20261121-0001 --why "a test order"`,
	flags: func(f *flags) work {
		m := newMoving(f, operator.KindDiscard)
		f.StringVar(&m.asked.Why, "why", "", whyHelp+"; required")
		f.check(func() error {
			if operator.Plain(m.asked.Why) == "" {
				return usageErrorf("--why is missing: say why these letters may end without an effect")
			}
			return nil
		})
		return m.run
	},
}

// moving is a replay or a discard.
type moving struct {
	asked  operator.Request
	filter *deadletter.Filter
	from   *string
	dryRun *bool
	by     func() string
}

func newMoving(f *flags, kind operator.Kind) *moving {
	m := &moving{asked: operator.Request{Kind: kind}, by: f.by()}
	m.filter, m.from = f.choose()
	limit := f.limit(0, string(kind)+" at most so many; 0: no limit")
	m.dryRun = f.Bool("dry-run", false, "change nothing, count what would be done")
	f.check(func() error {
		m.filter.Limit = *limit
		return nil
	})
	return m
}

// run does it as an act, and shows what it did, also when it ended early.
func (m *moving) run(ctx context.Context, c *call) error {
	lines, err := c.input(*m.from, "the letters")
	if err != nil {
		return err
	}
	r := m.asked
	r.Filter, r.Why, r.From, r.Limit = *m.filter, operator.Plain(r.Why), *m.from, m.filter.Limit
	var of deadletter.Selection = *m.filter
	if r.From != "" {
		of = deadletter.File{Name: r.From, Lines: lines, Filter: *m.filter}
	}
	var res deadletter.Result
	err = c.act(ctx, m.by(), *m.dryRun, operator.TaskRequest{Kind: r.Kind, Why: r.Why, Detail: r}, func(
		ctx context.Context, task operator.Task) (_ operator.Result, err error) {
		res, err = r.Do(ctx, c.Letters, of, task.By, *m.dryRun, func(p deadletter.Progress) {
			c.progress.show(p)
			task.Letters(p)
		})
		return operator.ResultOf(res), err
	})
	if err != nil && res.Seen == 0 {
		return err
	}
	printErr := c.render(res, resultTable(res))
	if c.out.chosen == outputTable {
		c.explainLeft(res.Left)
	}
	if err != nil {
		return errors.Join(printErr, c.hinted(err))
	}
	return errors.Join(printErr, c.undone(res, len(r.Filter.Keys) > 0))
}

// input opens a file until the command ends, or the standard input for "-".
func (c *call) input(path, what string) (io.Reader, error) {
	if path == "" || path == "-" {
		return c.stdin, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, usageErrorf("%s: %w", what, err)
	}
	c.closers = append(c.closers, file.Close) // it was only read
	return file, nil
}

// undone is the error of a run that did less than it was asked to; named says that the letters were, by their keys.
func (c *call) undone(res deadletter.Result, named bool) error {
	queue := c.Letters.Queue()
	var errs []error
	if res.Others > 0 {
		c.say("somebody else was reading %s (a daemon that replays by itself, reconcile, another "+
			"replay): letters that it held were not seen; run it again", queue)
	}
	switch {
	case res.ByRows && res.Replayed+res.Discarded > 0 && !res.DryRun:
		c.say("what lies of them in %s is stale, and dropped by a daemon that has pages, or by the next replay that comes by",
			queue)
	case res.ByRows && res.Found == 0:
		c.say("no dead row has this; a letter without a row is found by --key or --all")
	case res.Found == 0:
		c.say("%s is empty; if '%s dlq list' has dead letters all the same, they were purged or moved: "+
			"'%s reconcile'", queue, c.name, c.name)
	}
	if res.FailedAgain > 0 {
		c.say("what failed again may have attempts left: '%s log list --status failed' and '%s dlq "+
			"list' show it", c.name, c.name)
	}
	if n := len(res.NotFound); n > 0 {
		for _, key := range res.NotFound[:min(n, maxShown)] {
			c.say("no letter in %s has key %s and fulfils the other conditions; '%s log explain' says "+
				"what became of it; if its row is dead, the letter was purged or moved: '%s reconcile'", queue, printable(key),
				c.name, c.name)
		}
		errs = append(errs, fmt.Errorf("keys that no letter has: %d", n))
	}
	if n := len(res.Left); n > 0 {
		errs = append(errs, fmt.Errorf("chosen letters that stay in the queue: %d", n))
	}
	if n := res.DeadAgain; named && n > 0 {
		errs = append(errs, fmt.Errorf("letters with a --key that are dead again: %d; '%s dlq show' says why", n, c.name))
	}
	return errors.Join(errs...)
}
