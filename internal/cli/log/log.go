// Package log has the commands that look and act beside the daemons, in the database: the consumer log, acts, pauses,
// and what disagrees. It must not decide what a row means, nor what mends it.
package log

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

// Commands are those of this folder.
var Commands = []command.Command{
	{Use: "log", Short: "Ask the consumer log, or delete what is old in it", Of: []command.Command{
		listCommand, explainCommand, pruneCommand,
	}},
	reconcileCommand, actsCommand, pauseCommand, resumeCommand,
}

var listCommand = command.Command{
	Use:   "list",
	Short: "List rows of the consumer log, by status, the latest first",
	Long: `List rows of the consumer log: by status in the order processing, success, failed, dead, discarded, within a
status the latest transition first. Every page is read through an index, however large the log is.`,
	Example: "  PROGRAM log list --status processing,failed --until 1h",
	Needs:   command.NeedsLog,
	Flags: func(f *command.Flags) command.Work {
		var filter dedup.Filter
		command.Some(f, &filter.Statuses, "status", "only rows in these: ", dedup.Statuses(), f.StringSlice)
		f.StringVar(&filter.Tag, "tag", "", "only rows with this tag")
		f.StringArrayVar(&filter.Keys, "key", nil, "only rows with this key; may be repeated")
		f.Span(&filter.Since, &filter.Until, "whose last transition came then or later: a time like 2026-11-21T08:00:00Z, "+
			"or a duration like 24h", "whose last transition came before then, said as for --since")
		wanted := f.Listing(100)
		f.FewKeys(&filter.Keys)
		return func(ctx context.Context, c *command.Call) error {
			filter.Group = c.Config.Group
			return command.List(c, wanted, func() { c.SayUnknownGroup(ctx) }, func(most int, after dedup.Cursor) (
				[]operator.Row, dedup.Cursor, error) {
				filter.After, filter.Limit = after, min(most, dedup.MaxListed)
				rows, next, err := c.Records.List(ctx, filter)
				if errors.Is(err, dedup.ErrCursor) {
					err = command.Usagef("--after: %w", err)
				}
				return operator.RowsOf(rows), next, err
			}, []string{"SINCE", "TAG", "KEY", "STATUS", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}, func(r operator.Row) []any {
				return []any{screen.Date(r.Since), r.Tag, r.Key, r.Status, r.Reason, r.Attempts, r.Replays, c.Fitting(r.Remark)}
			})
		}
	},
}

// question is what log explain was asked.
type question struct {
	key, tag, order string
	queue           bool // count the copies in the dead-letter queue
}

var explainCommand = command.Command{
	Use:   "explain KEY | --order SN",
	Short: "Tell all that is known of one message, or of one order's, what it means and what to do next",
	Long: `Tell all that is known of the message with this key: its row in the consumer log, its story in order of time,
the reservations that it gave back, its lock, what that means and what to do next. A key that exists under
several tags is told once for each, and so are messages that are filed as conflict or unidentified because of it.

With --order: the same for every message of an order. They are found by what its reservations name, by the order's
number as key, and by the bodies that the log keeps of messages which are not applied.

The dead-letter queue is not touched: whether a copy lies there, the row says. --count-letters looks: it reads all
letters and gives them back to their places, which RabbitMQ counts as one delivery of the million that the queue allows,
and hides them from other readers meanwhile.`,
	Args:  cobra.MaximumNArgs(1),
	Needs: command.NeedsLog,
	Flags: func(f *command.Flags) command.Work {
		var q question
		f.StringVar(&q.tag, "tag", "", "only the message with this tag")
		f.StringVar(&q.order, "order", "", "all messages of the order with this number")
		f.BoolVar(&q.queue, "count-letters", false, "count the copies in the dead-letter queue too")
		f.Check(func() error {
			q.key = f.Arg(0)
			return cmp.Or(command.RefuseIf(f.NArg() == 0 && q.order == "", "which message? A key, or --order SN"),
				command.RefuseIf(f.NArg() == 1 && q.order != "", "a key and --order exclude each other"),
				command.RefuseIf(q.order != "" && q.tag != "", "--tag goes with a key"))
		})
		return func(ctx context.Context, c *command.Call) error {
			told, err := explain(ctx, c, q)
			if err != nil {
				return err
			}
			if c.Output.Chosen == command.FormJSON && q.order == "" {
				for _, unseen := range told.Unseen {
					c.Say("not seen: %s", unseen)
				}
				return command.WriteJSON(c.Stdout, told.Messages)
			}
			return c.Print(explained{Told: told}, func(p *command.Page) {
				_ = told.Write(p) // into memory
			})
		}
	},
}

// explained is the answer to a question, which is whole. The names of its JSON form are stable.
type explained struct {
	view.Told
	More bool `json:"more,omitempty"`
}

// explain gathers the answer.
func explain(ctx context.Context, c *command.Call, q question) (answer view.Told, err error) {
	var found operator.Told
	if q.order != "" {
		found, err = c.OfOrder(ctx, q.order)
	} else {
		found, err = c.OfKey(ctx, q.key, q.tag)
	}
	switch {
	case err != nil:
		return answer, err
	case q.order != "" && len(found.Messages)+len(found.Reservations) == 0:
		return answer, fmt.Errorf("nothing is known of order %q: no reservation, no message that names it\nNot seen: %s",
			q.order, found.Unseen[len(found.Unseen)-1])
	case q.order == "" && len(found.Messages) == 0:
		c.SayUnknownGroup(ctx)
		return answer, noSuchKey(c, q.key, q.tag)
	}
	// A lock's server that is away is no reason to tell nothing.
	lock, err := c.LockWords(ctx)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", config.Prefix+c.Config.LockSetting(), err)
	}
	copies := func(row dedup.Row) string { return operator.CopiesText(row, c.Config.Queue) }
	if q.queue {
		if copies, err = copiesInQueue(ctx, c, found); err != nil {
			return answer, err
		}
	}
	names := operator.Names{Queue: c.Config.Queue, MaxAttempts: c.Config.MaxAttempts, Program: c.Program}
	answer = view.Tell(found, q.order, names, func(id dedup.Identity) string {
		text := lock(ctx, id)
		if strings.HasPrefix(text, "unknown: ") {
			text += fmt.Sprintf("; %s is %s", config.Prefix+c.Config.LockSetting(), c.Config.Shown(c.Config.LockSetting()))
		}
		return text
	}, copies)
	return answer, nil
}

// copiesInQueue reads the whole dead-letter queue once.
func copiesInQueue(ctx context.Context, c *command.Call, told operator.Told) (func(dedup.Row) string, error) {
	count := map[dedup.Identity]int{}
	for _, m := range told.Messages {
		count[m.Row.Identity] = 0
	}
	res, err := c.Letters.Survey(ctx, deadletter.SurveyOptions{Each: func(s deadletter.Surveyed) error {
		if n, ok := count[s.Row.Identity]; ok {
			count[s.Row.Identity] = n + 1
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	return func(row dedup.Row) string {
		text := fmt.Sprintf("%d of the %d letters in %s", count[row.Identity], res.Seen, c.Letters.Queue())
		if res.Others > 0 {
			text += "; somebody else was reading it, so there may be more"
		}
		return text
	}, nil
}

func noSuchKey(c *command.Call, key, tag string) error {
	cfg := c.Config
	where := fmt.Sprintf("group %s", cfg.Group)
	if tag != "" {
		where += fmt.Sprintf(" under tag %q", tag)
	}
	return fmt.Errorf(`the consumer log knows no key %q in %s
It may not have been published or consumed yet, its row may have outlived ROLLBACKD_LOG_RETENTION (%v), or the key is
another one: ROLLBACKD_KEY_FROM is %s. What could not be identified stands under a key of rollbackd's own:
'%s dlq list --tag rollbackd.unidentified', and --tag rollbackd.conflict`, key, where, cfg.LogRetention, cfg.KeyFrom,
		c.Program)
}

var actsCommand = command.Command{
	Use:   "acts [ID]",
	Short: "List who did what, by a command, a page or a program, or show one act",
	Long: `List what was done to dead letters, rows and the fleet, the latest first: by whom, why, on what, with what
outcome, when it began and ended; by whichever door, a command, a page, the API, or the fleet by itself. With an ID it
shows that act. Acts are kept for 90 days.`,
	Example: "  PROGRAM acts --since 24h --kind discard",
	Args:    cobra.MaximumNArgs(1),
	Needs:   command.NeedsActs,
	Flags: func(f *command.Flags) command.Work {
		f.BoolFunc("json", "the same as -o json", func(string) error { return f.Output.Set(command.FormJSON) })
		var asked operator.ActFilter
		command.One(f, &asked.Kind, "kind", "only acts of this kind: ", operator.Kinds())
		command.One(f, &asked.State, "state", "only acts in this state: ", []operator.State{operator.Running, operator.Done,
			operator.Stopped, operator.Failed})
		f.StringVar(&asked.Actor, "by", "", "only acts of this one, the whole name as it stands in the list")
		f.Span(&asked.Since, &asked.Until, "only those that began since then: a time, or a duration like 24h",
			"only those that began before then, said as for --since")
		wanted := f.Listing(50)
		return func(ctx context.Context, c *command.Call) error {
			if len(c.Args) == 1 {
				act, err := c.Acts.Act(ctx, c.Args[0])
				if errors.Is(err, operator.ErrNoAct) {
					return fmt.Errorf("no act of this group and queue has the id %q", c.Args[0])
				}
				if err != nil {
					return c.OfActs(err)
				}
				return c.Render(act, actTable(act))
			}
			return c.OfActs(command.List(c, wanted, func() {}, func(most int, after string) ([]operator.Act, string, error) {
				asked.Before, asked.Limit = after, min(most, operator.MaxActs)
				return c.Acts.Acts(ctx, asked)
			}, []string{"BEGAN", "ENDED", "ACT", "WHO", "STATE", "OUTCOME", "ON WHAT", "WHY", "ID"}, func(a operator.Act) []any {
				return []any{screen.Date(a.Created), screen.Date(a.Ended), a.Kind, a.Actor, a.State,
					screen.Shorten(a.Outcome(), 80), screen.Shorten(a.Subject(), 80), screen.Shorten(a.Why, 80), a.ID}
			}))
		}
	},
}

func actTable(a operator.Act) command.Table {
	t := command.Table{Header: []string{"id", a.ID}}
	for _, fact := range [][2]string{
		{"act", string(a.Kind)}, {"by", a.Actor}, {"why", a.Why}, {"on what", a.Subject()}, {"state", string(a.State)},
		{"outcome", a.Outcome()}, {"error", a.Error}, {"began", screen.Date(a.Created)}, {"ended", screen.Date(a.Ended)},
		{"worked on by", a.Owner}, {"stopped by", a.StopBy},
	} {
		t.Fact(fact[0], fact[1])
	}
	return t
}

// leastRetention is the shortest age at which rows may go, as for ROLLBACKD_LOG_RETENTION.
const leastRetention = 24 * time.Hour

// pruneResult is what log prune did. The names of its JSON form are stable.
type pruneResult struct {
	DryRun    bool     `json:"dry_run"`
	OlderThan string   `json:"older_than"`
	Rows      []pruned `json:"rows"`
}

// pruned are the rows of a status.
type pruned struct {
	Status string    `json:"status"`
	Rows   int       `json:"rows"`
	Oldest time.Time `json:"oldest,omitzero"` // last transition of the oldest of them, by the database's clock
}

var pruneCommand = command.Command{
	Use:   "prune",
	Short: "Delete rows whose messages ended long ago, as the daemon does by itself",
	Long: `Delete the rows in success and discarded whose last transition is older than ROLLBACKD_LOG_RETENTION, with
their stories, as one daemon of the fleet does by itself. Rows that are processing, failed or dead never go. A message
whose row is gone is new again: rows must outlive every copy of their message, and dead letters are copies too.

It deletes in short statements and rests between them four times as long as they take, or less where messages came
faster than that: so it may run while daemons work. It may be interrupted and run again.`,
	Example: "  PROGRAM log prune --dry-run --older-than 2160h",
	Flags: func(f *command.Flags) command.Work {
		by := f.By()
		dryRun := f.Bool("dry-run", false, "change nothing, count what would go")
		why := f.String("why", "", command.WhyHelp)
		age := f.Duration("older-than", 0, "delete what is older than this, 24h or more; default ROLLBACKD_LOG_RETENTION")
		f.Check(func() error {
			return command.RefuseIf(f.Changed("older-than") && *age < leastRetention, "--older-than %v is less than %v: copies "+
				"of a message may still come, and would take effect again", *age, leastRetention)
		})
		return func(ctx context.Context, c *command.Call) error {
			if !f.Changed("older-than") {
				*age = c.Config.Retention()
			}
			if *age == 0 {
				return command.Usagef("ROLLBACKD_LOG_RETENTION is 0, which keeps all rows: say --older-than")
			}
			return prune(ctx, c, by(), *why, *age, *dryRun)
		}
	},
}

func prune(ctx context.Context, c *command.Call, who, why string, age time.Duration, dryRun bool) error {
	c.LockWait = time.Second // it gives way to messages: MySQL knows no shorter wait for a lock
	var rows []dedup.Pruned
	err := c.Act(ctx, who, dryRun, operator.TaskRequest{
		Kind: operator.KindPrune, Why: why, Detail: map[string]string{"older_than": age.String()},
	}, func(ctx context.Context, task operator.Task) (result operator.Result, err error) {
		if err := warnOfOldLetter(ctx, c, age); err != nil {
			return result, err
		}
		prune := c.Records.Prune
		if dryRun {
			prune = c.Records.CountPrunable
		}
		rows, err = prune(ctx, dedup.PruneOptions{Group: c.Config.Group, OlderThan: age, Progress: func(n int) {
			task.Progress("rows", n)
			c.Progress.Count(n, "rows")
		}})
		for _, p := range rows {
			result.Deleted += p.Rows
		}
		return result, err
	})
	if err != nil && len(rows) == 0 {
		return err
	}
	res := pruneResult{DryRun: dryRun, OlderThan: age.String()}
	t := command.Table{Header: []string{"STATUS", "DELETED", "OLDEST"}}
	if dryRun {
		t.Header[1] = "WOULD GO"
	}
	for _, p := range rows {
		res.Rows = append(res.Rows, pruned{p.Status.String(), p.Rows, p.Oldest})
		t.Add(p.Status, p.Rows, screen.Date(p.Oldest))
	}
	return errors.Join(c.Render(res, t), c.Hinted(err))
}

// warnOfOldLetter says so when a letter waits that is older than what goes.
func warnOfOldLetter(ctx context.Context, c *command.Call, age time.Duration) error {
	oldest, err := c.Records.Oldest(ctx, c.Config.Group)
	if dead, ok := oldest[dedup.Dead]; ok && dead.Age > age {
		c.Say("warning: a dead letter is older than %v, tag %s, key %s: copies of messages live longer than the rows that "+
			"you keep", age, screen.Printable(dead.Tag), screen.Printable(dead.Key))
	}
	return err
}
