package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

func newDLQCmd(a *app) *cobra.Command {
	return newGroupCmd("dlq", "List, replay and discard dead letters", newDLQListCmd(a), newDLQReplayCmd(a), newDLQDiscardCmd(a))
}

func newDLQListCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the latest first",
		Long: `List dead letters as the consumer log knows them, the latest first. The queue is not touched, and RabbitMQ need not
answer.`,
		Args: cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	filter := addFilterFlags(cmd)
	limit := cmd.Flags().Int("limit", 100, "list at most so many; 0: all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.read(time.Now(), *limit)
		if err != nil {
			return err
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		letters, closeAll, err := a.openLetters(cmd.Context(), cfg, "dlq")
		if err != nil {
			return err
		}
		defer closeAll()
		found, more, err := listLetters(cmd.Context(), letters, f)
		if err != nil {
			return a.mysqlError(cfg, err)
		}
		t := table{header: []string{"DEAD AT", "TAG", "KEY", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}}
		for _, l := range found {
			replays := fmt.Sprint(l.Replays)
			if l.Parked {
				replays += " (parked)"
			}
			t.add(l.DeadAt.Format(time.RFC3339), l.Tag, l.Key, l.Reason, l.Attempts, replays, shorten(l.Remark, 80))
		}
		if more {
			fmt.Fprintf(a.stderr, "%s: there are more; --limit 0 lists all\n", a.name)
		}
		return out.render(a.stdout, found, t)
	}
	return cmd
}

// listLetters pages through the log up to the filter's limit; more says that there would have been more.
func listLetters(ctx context.Context, letters *deadletter.Letters, f deadletter.Filter) (found []deadletter.Letter, more bool, err error) {
	limit := f.Limit
	var after dedup.Cursor
	for {
		f.Limit = dedup.MaxListed
		if limit > 0 {
			f.Limit = min(limit-len(found), dedup.MaxListed)
		}
		page, next, err := letters.List(ctx, f, after)
		if err != nil {
			return nil, false, err
		}
		found = append(found, page...)
		if next == "" || limit > 0 && len(found) >= limit {
			return found, next != "", nil
		}
		after = next
	}
}

func newDLQReplayCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Put dead letters back on the main queue",
		Long: `Put dead letters back on the main queue, with all their attempts again. Say which: --all, or one or more of the
conditions, which must all hold. Taken are the letters that are in the queue when it begins, the oldest first; those that
die again meanwhile wait for the next replay. Cure the cause first, and restart the daemons when their settings changed.

It may be interrupted at any time and run again: nothing is lost and nothing happens twice. The exit code is 1 when a
chosen letter stays in the queue; the list says why.`,
		Example: "  " + a.name + " dlq replay --reason exhausted --since 24h --dry-run",
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	filter := addFilterFlags(cmd)
	flags := cmd.Flags()
	all := flags.Bool("all", false, "choose all letters")
	limit := flags.Int("limit", 0, "replay at most so many; 0: no limit")
	by := addByFlag(cmd)
	var o deadletter.ReplayOptions
	flags.BoolVar(&o.DryRun, "dry-run", false, "change nothing, count what would be done")
	flags.BoolVar(&o.Force, "force", false, "also letters whose row is gone and that are older than ROLLBACKD_LOG_RETENTION, or whose key another body had: they may have had their effect, which then happens again; and letters that were replayed ROLLBACKD_MAX_REPLAYS times")
	flags.BoolVar(&o.Discarded, "discarded", false, "also letters whose identity was discarded")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.choose(time.Now(), *all, *limit)
		if err != nil {
			return err
		}
		return a.moveLetters(cmd.Context(), out, func(ctx context.Context, letters *deadletter.Letters, progress func(deadletter.Progress)) (deadletter.Result, error) {
			o.By, o.Progress = by.name(), progress
			return letters.Replay(ctx, f, o)
		})
	}
	return cmd
}

func newDLQDiscardCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "discard",
		Short: "End dead letters for good",
		Long: `End dead letters for good: they leave the queue, their rows say discarded, by whom and why, and every further copy of
their messages is acked without an effect. Which letters is said as for replay.`,
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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.choose(time.Now(), *all, *limit)
		if err != nil {
			return err
		}
		if strings.TrimSpace(o.Why) == "" {
			return usageErrorf("--why is missing: say why these letters may end without an effect")
		}
		return a.moveLetters(cmd.Context(), out, func(ctx context.Context, letters *deadletter.Letters, progress func(deadletter.Progress)) (deadletter.Result, error) {
			o.By, o.Progress = by.name(), progress
			return letters.Discard(ctx, f, o)
		})
	}
	return cmd
}

// moveLetters runs a replay or a discard and shows what it did, also when it ended early.
func (a *app) moveLetters(ctx context.Context, out *output, move func(context.Context, *deadletter.Letters, func(deadletter.Progress)) (deadletter.Result, error)) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	letters, closeAll, err := a.openLetters(ctx, cfg, "dlq")
	if err != nil {
		return err
	}
	defer closeAll()
	var progress func(deadletter.Progress)
	if onTerminal(a.stderr) {
		progress = func(p deadletter.Progress) { fmt.Fprintf(a.stderr, "\r%d of %d letters ", p.Seen, p.Found) }
		defer fmt.Fprintln(a.stderr)
	}
	res, err := move(ctx, letters, progress)
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
	return errors.Join(printErr, a.undone(letters.Queue(), res))
}

// undone is the error of a run that did less than it was asked to.
func (a *app) undone(queue string, res deadletter.Result) error {
	var errs []error
	if n := len(res.NotFound); n > 0 {
		for _, key := range res.NotFound[:min(n, maxShown)] {
			fmt.Fprintf(a.stderr, "%s: no letter in %s has key %s and fulfils the other conditions; '%s log explain' says what became of it\n", a.name, queue, printable(key), a.name)
		}
		errs = append(errs, fmt.Errorf("keys that no letter has: %d", n))
	}
	if n := len(res.Left); n > 0 {
		errs = append(errs, fmt.Errorf("chosen letters that stay in the queue: %d", n))
	}
	return errors.Join(errs...)
}

func resultTable(res deadletter.Result) table {
	t := table{header: []string{"LETTERS", "OUTCOME"}}
	add := func(n int, outcome string) {
		if n > 0 {
			t.add(n, outcome)
		}
	}
	t.add(res.Found, "found in the queue")
	add(res.Replayed, "replayed")
	add(res.Discarded, "discarded")
	for _, reason := range slices.Sorted(maps.Keys(res.ByReason)) {
		add(res.ByReason[reason], "  of them "+reason)
	}
	add(res.Duplicates, "dropped: further letters of the same messages")
	add(res.Stale, "dropped: their messages had ended already")
	add(res.NotSelected, "not chosen")
	add(res.Later, "came after the beginning")
	add(len(res.Left), "chosen, but stay")
	if res.DryRun {
		t.add("-", "this was a dry run: nothing was changed")
	}
	return t
}

// whatNext says what to do about letters that stay.
var whatNext = map[deadletter.Why]string{
	deadletter.WhyInProgress:  "a worker has them right now: try again later",
	deadletter.WhyMoved:       "somebody changed the row at the same moment: try again",
	deadletter.WhyUnknown:     "the database's answer was lost: try again",
	deadletter.WhyUnpublished: "the main queue did not confirm the message: try again",
	deadletter.WhyOldRow:      "published, but the row of the former identity could not be ended: try again, it is only dropped then",
	deadletter.WhyUnacked:     "done, but the ack was lost: the next replay drops them",
	deadletter.WhyTooOld:      "the row is gone and they are older than ROLLBACKD_LOG_RETENTION, so they may have had their effect: make sure that they had not, then use --force",
	deadletter.WhyKeyTaken:    "another body had the key and its row is gone: make sure that this one may take effect too, then use --force",
	deadletter.WhyParked:      "they were replayed ROLLBACKD_MAX_REPLAYS times in vain: mend the cause, then use --force; or discard them",
	deadletter.WhyNewerStatus: "a newer version wrote the row: use that version",
	deadletter.WhyFailed:      "see the error",
}

// maxShown is how many letters or keys of a kind are named on a screen.
const maxShown = 10

// explainLeft says on stderr why letters stay, with some of their keys.
func (a *app) explainLeft(left []deadletter.Left) {
	groups := map[deadletter.Why][]deadletter.Left{}
	for _, l := range left {
		groups[l.Why] = append(groups[l.Why], l)
	}
	for _, why := range slices.Sorted(maps.Keys(groups)) {
		fmt.Fprintf(a.stderr, "%s: %d stay (%s), %s\n", a.name, len(groups[why]), why, whatNext[why])
		for _, l := range groups[why][:min(maxShown, len(groups[why]))] {
			fmt.Fprintf(a.stderr, "  %s %s %s\n", printable(l.Tag), printable(l.Key), printable(l.Error))
		}
		if n := len(groups[why]) - maxShown; n > 0 {
			fmt.Fprintf(a.stderr, "  and %d more; -o json lists all\n", n)
		}
	}
}

// filterFlags are the conditions that all dlq commands know.
type filterFlags struct {
	keys, reasons     []string
	tag, since, until string
}

func addFilterFlags(cmd *cobra.Command) *filterFlags {
	f := new(filterFlags)
	var reasons []string
	for _, r := range wire.Reasons() {
		reasons = append(reasons, string(r))
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.keys, "key", nil, "choose by key; may be given several times")
	flags.StringVar(&f.tag, "tag", "", "choose by tag")
	flags.StringArrayVar(&f.reasons, "reason", nil, "choose by reason; may be given several times: "+strings.Join(reasons, ", "))
	flags.StringVar(&f.since, "since", "", "choose those dead since then: a time like 2026-11-21T08:00:00Z, or a duration like 24h")
	flags.StringVar(&f.until, "until", "", "choose those dead before then, said as for --since")
	return f
}

// read makes a filter that need not choose anything.
func (f *filterFlags) read(now time.Time, limit int) (deadletter.Filter, error) {
	filter := deadletter.Filter{Keys: f.keys, Tag: f.tag, Reasons: f.reasons, Limit: limit}
	for _, reason := range f.reasons {
		if !slices.Contains(wire.Reasons(), wire.Reason(reason)) {
			return filter, usageErrorf("--reason %q is none; there are %v", reason, wire.Reasons())
		}
	}
	if slices.Contains(f.keys, "") {
		return filter, usageErrorf("--key is empty")
	}
	var err error
	if filter.Since, err = readMoment("since", f.since, now); err != nil {
		return filter, err
	}
	if filter.Until, err = readMoment("until", f.until, now); err != nil {
		return filter, err
	}
	switch {
	case limit < 0:
		return filter, usageErrorf("--limit %d is negative", limit)
	case !filter.Since.IsZero() && !filter.Until.IsZero() && !filter.Since.Before(filter.Until):
		return filter, usageErrorf("--since must come before --until")
	}
	return filter, nil
}

// choose makes a filter for a command that changes something: it must be said what.
func (f *filterFlags) choose(now time.Time, all bool, limit int) (deadletter.Filter, error) {
	filter, err := f.read(now, limit)
	if err != nil {
		return filter, err
	}
	narrow := len(f.keys) > 0 || len(f.reasons) > 0 || f.tag != "" || f.since != "" || f.until != ""
	switch {
	case !all && !narrow:
		return filter, usageErrorf("which letters? --all, or one of --key, --tag, --reason, --since, --until")
	case all && narrow:
		return filter, usageErrorf("--all and a condition contradict each other")
	}
	filter.All = all
	return filter, nil
}

// readMoment reads a time, or a duration before now.
func readMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, usageErrorf("--%s %q is neither a time (2026-11-21T08:00:00Z; without a zone it is UTC) nor a duration (24h)", flag, text)
}

// shorten cuts text after so many characters.
func shorten(s string, characters int) string {
	n := 0
	for i := range s {
		if n == characters-1 && len(s) > i+1 {
			return s[:i] + "…"
		}
		n++
	}
	return s
}

// byFlag says in whose name something is done.
type byFlag struct{ who string }

func addByFlag(cmd *cobra.Command) *byFlag {
	f := new(byFlag)
	cmd.Flags().StringVar(&f.who, "by", "", "who does it, for the story of each letter (default the user's name at this host)")
	return f
}

func (f *byFlag) name() string {
	if who := strings.TrimSpace(f.who); who != "" {
		return who
	}
	return person()
}
