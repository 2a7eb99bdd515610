package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/rabbit"
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
	Status string     `json:"status"`
	Rows   int        `json:"rows"`
	Oldest *time.Time `json:"oldest,omitempty"` // last transition of the oldest of them, by the database's clock
}

func newLogPruneCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Delete rows whose messages ended long ago, as the daemon does by itself",
		Long: `Delete the rows in success and discarded whose last transition is older than ROLLBACKD_LOG_RETENTION, with
their stories, as one daemon of the fleet does by itself. Rows that are processing, failed or dead never go. A message
whose row is gone is new again: rows must outlive every copy of their message, and dead letters are copies too.

It deletes in short statements and rests between them four times as long as they take, so it may run while daemons work.
It may be interrupted and run again.`,
		Example: "  " + a.name + " log prune --dry-run --older-than 2160h",
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	flags := cmd.Flags()
	dryRun := flags.Bool("dry-run", false, "change nothing, count what would go")
	by := addByFlag(cmd)
	why := flags.String("why", "", "the reason, for whoever asks later")
	olderThan := flags.Duration("older-than", 0, "delete what is older than this, 24h or more; default "+
		"ROLLBACKD_LOG_RETENTION")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if flags.Changed("older-than") && *olderThan < leastRetention {
			return usageErrorf("--older-than %v is less than %v: copies of a message may still come, and would take "+
				"effect again", *olderThan, leastRetention)
		}
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		if !flags.Changed("older-than") {
			*olderThan = cfg.Retention()
		}
		if *olderThan == 0 {
			return usageErrorf("ROLLBACKD_LOG_RETENTION is 0, which keeps all rows: say --older-than")
		}
		return a.prune(cmd.Context(), cfg, by.name(), *why, *olderThan, *dryRun, out)
	}
	return cmd
}

func (a *app) prune(
	ctx context.Context, cfg config.Config, who, why string, olderThan time.Duration, dryRun bool, out *output,
) error {
	// It gives way to messages: MySQL knows no shorter wait for a lock.
	db, closeDB, err := a.openDatabaseWith(ctx, cfg, dedup.OpenOptions{
		Program: rabbit.ConnectionName("log"), LockWait: time.Second,
	})
	if err != nil {
		return err
	}
	defer closeDB()
	records, err := a.newLog(ctx, cfg, db)
	if err != nil {
		return err
	}
	if err := a.warnOfOldLetter(ctx, cfg, records, olderThan); err != nil {
		return err
	}
	d, err := a.openDesk(cfg, db, records)
	if err != nil {
		return err
	}
	terminal := onTerminal(a.stderr)
	if terminal {
		defer fmt.Fprintln(a.stderr)
	}
	prune := records.Prune
	if dryRun {
		prune = records.CountPrunable
	}
	var rows []dedup.Pruned
	err = a.act(ctx, d, who, dryRun, operator.TaskRequest{
		Kind: operator.KindPrune, Why: why, Detail: map[string]string{"older_than": olderThan.String()},
	}, func(ctx context.Context, task operator.Task) (result operator.Result, err error) {
		rows, err = prune(ctx, dedup.PruneOptions{Group: cfg.Group, OlderThan: olderThan, Progress: func(n int) {
			task.Progress("rows", n)
			if terminal {
				fmt.Fprintf(a.stderr, "\r%d rows ", n)
			}
		}})
		for _, p := range rows {
			result.Deleted += p.Rows
		}
		return result, err
	})
	if err != nil && len(rows) == 0 {
		return a.mysqlError(cfg, err)
	}
	res := pruneResult{DryRun: dryRun, OlderThan: olderThan.String()}
	for _, p := range rows {
		r := pruned{Status: p.Status.String(), Rows: p.Rows}
		if !p.Oldest.IsZero() {
			r.Oldest = &p.Oldest
		}
		res.Rows = append(res.Rows, r)
	}
	return errors.Join(out.render(a.stdout, res, pruneTable(res)), a.mysqlError(cfg, err))
}

// warnOfOldLetter says so when a letter waits that is older than what goes.
func (a *app) warnOfOldLetter(
	ctx context.Context, cfg config.Config, records *dedup.Log, olderThan time.Duration,
) error {
	oldest, err := records.Oldest(ctx, cfg.Group)
	if err != nil {
		return a.mysqlError(cfg, err)
	}
	if dead, ok := oldest[dedup.Dead]; ok && dead.Age > olderThan {
		fmt.Fprintf(a.stderr, "%s: warning: a dead letter is older than %v, tag %s, key %s: copies of messages live longer "+
			"than the rows that you keep\n",
			a.name, olderThan, printable(dead.Tag), printable(dead.Key))
	}
	return nil
}

func pruneTable(res pruneResult) table {
	t := table{header: []string{"STATUS", "DELETED", "OLDEST"}}
	if res.DryRun {
		t.header[1] = "WOULD GO"
	}
	for _, r := range res.Rows {
		oldest := ""
		if r.Oldest != nil {
			oldest = r.Oldest.Format(time.RFC3339)
		}
		t.add(r.Status, r.Rows, oldest)
	}
	return t
}
