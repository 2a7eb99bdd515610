package cli

import (
	"context"
	"errors"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
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

var logPruneCommand = command{
	use:   "prune",
	short: "Delete rows whose messages ended long ago, as the daemon does by itself",
	long: `Delete the rows in success and discarded whose last transition is older than ROLLBACKD_LOG_RETENTION, with
their stories, as one daemon of the fleet does by itself. Rows that are processing, failed or dead never go. A message
whose row is gone is new again: rows must outlive every copy of their message, and dead letters are copies too.

It deletes in short statements and rests between them four times as long as they take, so it may run while daemons work.
It may be interrupted and run again.`,
	example: "  PROGRAM log prune --dry-run --older-than 2160h",
	flags: func(f *flags) work {
		by := f.by()
		dryRun := f.Bool("dry-run", false, "change nothing, count what would go")
		why := f.String("why", "", whyHelp)
		age := f.Duration("older-than", 0, "delete what is older than this, 24h or more; default ROLLBACKD_LOG_RETENTION")
		f.check(func() error {
			if f.Changed("older-than") && *age < leastRetention {
				return usageErrorf("--older-than %v is less than %v: copies of a message may still come, and would take "+
					"effect again", *age, leastRetention)
			}
			return nil
		})
		return func(ctx context.Context, c *call) error {
			if !f.Changed("older-than") {
				*age = c.cfg.Retention()
			}
			if *age == 0 {
				return usageErrorf("ROLLBACKD_LOG_RETENTION is 0, which keeps all rows: say --older-than")
			}
			return c.prune(ctx, by(), *why, *age, *dryRun)
		}
	},
}

func (c *call) prune(ctx context.Context, who, why string, age time.Duration, dryRun bool) error {
	c.lockWait = time.Second // it gives way to messages: MySQL knows no shorter wait for a lock
	var rows []dedup.Pruned
	err := c.act(ctx, who, dryRun, operator.TaskRequest{
		Kind: operator.KindPrune, Why: why, Detail: map[string]string{"older_than": age.String()},
	}, func(ctx context.Context, task operator.Task) (result operator.Result, err error) {
		if err := c.warnOfOldLetter(ctx, age); err != nil {
			return result, err
		}
		prune := c.Records.Prune
		if dryRun {
			prune = c.Records.CountPrunable
		}
		rows, err = prune(ctx, dedup.PruneOptions{Group: c.cfg.Group, OlderThan: age, Progress: func(n int) {
			task.Progress("rows", n)
			c.progress.count(n, "rows")
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
	for _, p := range rows {
		res.Rows = append(res.Rows, pruned{p.Status.String(), p.Rows, p.Oldest})
	}
	return errors.Join(c.render(res, pruneTable(res)), c.hinted(err))
}

// warnOfOldLetter says so when a letter waits that is older than what goes.
func (c *call) warnOfOldLetter(ctx context.Context, age time.Duration) error {
	oldest, err := c.Records.Oldest(ctx, c.cfg.Group)
	if dead, ok := oldest[dedup.Dead]; ok && dead.Age > age {
		c.say("warning: a dead letter is older than %v, tag %s, key %s: copies of messages live longer than the rows that "+
			"you keep", age, printable(dead.Tag), printable(dead.Key))
	}
	return err
}

func pruneTable(res pruneResult) table {
	t := table{header: []string{"STATUS", "DELETED", "OLDEST"}}
	if res.DryRun {
		t.header[1] = "WOULD GO"
	}
	for _, r := range res.Rows {
		t.add(r.Status, r.Rows, date(r.Oldest))
	}
	return t
}
