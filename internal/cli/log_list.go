package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/dedup"
)

// listed is one row of the log. The names of its JSON form are stable.
type listed struct {
	Group    string     `json:"group"`
	Tag      string     `json:"tag"`
	Key      string     `json:"key"`
	Status   string     `json:"status"`
	Reason   string     `json:"reason,omitempty"` // why it is dead
	Attempts int        `json:"attempts"`
	Replays  int        `json:"replays"`
	Since    time.Time  `json:"since"` // the last transition, by the database's clock
	Created  time.Time  `json:"created_at"`
	DeadAt   *time.Time `json:"dead_at,omitempty"`
	Owner    string     `json:"owner,omitempty"`
	Remark   string     `json:"remark,omitempty"`
}

func newLogListCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List rows of the consumer log, by status, the latest first",
		Long: `List rows of the consumer log: by status in the order processing, success, failed, dead, discarded, within a
status the latest transition first. Every page is read through an index, however large the log is.`,
		Example: "  " + a.name + " log list --status processing,failed --until 1h",
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	flags := cmd.Flags()
	status := flags.StringSlice("status", nil, "only rows in these: "+strings.Join(statusWords(), ", "))
	completes(cmd, "status", statusWords()...)
	var f dedup.Filter
	flags.StringVar(&f.Tag, "tag", "", "only rows with this tag")
	flags.StringArrayVar(&f.Keys, "key", nil, "only rows with this key; may be repeated")
	since := flags.String("since", "", "whose last transition came then or later: a time like 2026-11-21T08:00:00Z, or "+
		"a duration like 24h")
	until := flags.String("until", "", "whose last transition came before then, said as for --since")
	limit := flags.Int("limit", 100, "list at most so many; 0: all")
	after := flags.String("after", "", "go on where the last list ended: it said how")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		if f.Statuses, err = readStatuses(*status); err != nil {
			return err
		}
		if f.Since, err = readMoment("since", *since, time.Now()); err != nil {
			return err
		}
		if f.Until, err = readMoment("until", *until, time.Now()); err != nil {
			return err
		}
		switch {
		case *limit < 0:
			return usageErrorf("--limit %d is negative", *limit)
		case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
			return usageErrorf("--since must come before --until")
		case len(f.Keys) > dedup.MaxListedKeys:
			return usageErrorf("%d keys: at most %d", len(f.Keys), dedup.MaxListedKeys)
		}
		f.After = dedup.Cursor(*after)
		return a.listLog(cmd.Context(), f, *limit, out)
	}
	return cmd
}

func statusWords() (words []string) {
	for _, s := range dedup.Statuses() {
		words = append(words, s.String())
	}
	return words
}

func readStatuses(words []string) (statuses []dedup.Status, err error) {
	for _, w := range words {
		i := slices.Index(statusWords(), strings.TrimSpace(w))
		if i < 0 {
			return nil, usageErrorf("--status %q is none; there are %s", w, strings.Join(statusWords(), ", "))
		}
		statuses = append(statuses, dedup.Statuses()[i])
	}
	return statuses, nil
}

func (a *app) listLog(ctx context.Context, f dedup.Filter, limit int, out *output) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	records, closeLog, err := a.openLog(ctx, cfg, "log")
	if err != nil {
		return err
	}
	defer closeLog()
	f.Group = cfg.Group
	rows := []listed{}
	var next dedup.Cursor
	for {
		f.Limit = dedup.MaxListed
		if limit > 0 {
			f.Limit = min(limit-len(rows), dedup.MaxListed)
		}
		var page []dedup.Row
		if page, next, err = records.List(ctx, f); errors.Is(err, dedup.ErrCursor) {
			return usageErrorf("--after: %w", err)
		} else if err != nil {
			return a.mysqlError(cfg, err)
		}
		for _, r := range page {
			rows = append(rows, listedRow(r))
		}
		if next == "" || limit > 0 && len(rows) >= limit {
			break
		}
		f.After = next
	}
	t := table{header: []string{"SINCE", "TAG", "KEY", "STATUS", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}}
	for _, r := range rows {
		t.add(r.Since.Format(time.RFC3339), r.Tag, r.Key, r.Status, r.Reason, r.Attempts, r.Replays, a.fitting(r.Remark))
	}
	if len(rows) == 0 {
		a.sayUnknownGroup(ctx, records, cfg.Group)
	}
	if next != "" {
		fmt.Fprintf(a.stderr, "%s: there are more; --limit 0 lists all, --after %s goes on\n", a.name, next)
	}
	return out.render(a.stdout, rows, t)
}

func listedRow(r dedup.Row) listed {
	l := listed{
		Group: r.Group, Tag: r.Tag, Key: r.Key, Status: r.Status.String(), Attempts: r.Attempts, Replays: r.Replays,
		Since: r.At, Created: r.CreatedAt, Owner: r.Owner, Remark: r.Remark,
	}
	if !r.DeadAt.IsZero() {
		l.Reason, l.DeadAt = string(r.Reason), &r.DeadAt
	}
	if r.Condemned() { // it will be
		l.Reason = string(r.Reason)
	}
	return l
}
