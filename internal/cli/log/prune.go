package log

import (
	"context"
	"errors"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/cli/command"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/screen"
)

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
			if f.Changed("older-than") && *age < leastRetention {
				return command.Usagef("--older-than %v is less than %v: copies of a message may still come, and would take "+
					"effect again", *age, leastRetention)
			}
			return nil
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
