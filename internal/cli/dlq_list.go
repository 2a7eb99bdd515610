package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

func newDLQListCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the latest first, or count them by reason",
		Long: `List dead letters as the consumer log knows them, the latest first, or count them with --by reason. The queue
is not touched, and RabbitMQ need not answer. Every page is read through an index, however large the log is.`,
		Example: "  " + a.name + " dlq list --by reason --since 24h",
		Args:    cobra.NoArgs,
	}
	out := addOutputFlag(cmd)
	filter := addFilterFlags(cmd)
	flags := cmd.Flags()
	limit := flags.Int("limit", 100, "list at most so many; 0: all")
	after := flags.String("after", "", "go on where the last list ended: it said how")
	by := flags.String("by", "", "count them by this: reason")
	completes(cmd, "by", "reason")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter.list(time.Now(), *limit)
		switch {
		case err != nil:
			return err
		case *by != "" && *by != "reason":
			return usageErrorf("--by %q can only be reason", *by)
		case *by != "" && (*after != "" || flags.Changed("limit")):
			return usageErrorf("--by counts all letters that are chosen: without --limit and --after")
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
		if *by != "" {
			reasons, err := letters.Reasons(cmd.Context(), f)
			if err != nil {
				return a.mysqlError(cfg, err)
			}
			if len(reasons) == 0 {
				a.sayUnknownGroup(cmd.Context(), letters.Records(), cfg.Group)
			}
			return out.render(a.stdout, reasons, reasonTable(reasons))
		}
		found, next, err := listLetters(cmd.Context(), letters, f, dedup.Cursor(*after))
		if err != nil {
			return a.mysqlError(cfg, err)
		}
		if len(found) == 0 {
			a.sayUnknownGroup(cmd.Context(), letters.Records(), cfg.Group)
		}
		if next != "" {
			fmt.Fprintf(a.stderr, "%s: there are more; --limit 0 lists all, and this goes on: --after %s\n", a.name, next)
		}
		return out.render(a.stdout, found, a.letterTable(found))
	}
	return cmd
}

func (a *app) letterTable(found []deadletter.Letter) table {
	t := table{header: []string{"DEAD AT", "TAG", "KEY", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}}
	for _, l := range found {
		t.add(l.DeadAt.Format(time.RFC3339), l.Tag, l.Key, l.Reason, l.Attempts, replaysText(l), a.fitting(l.Remark))
	}
	return t
}

func replaysText(l deadletter.Letter) string {
	if l.Parked {
		return fmt.Sprintf("%d (parked)", l.Replays)
	}
	return fmt.Sprint(l.Replays)
}

func reasonTable(reasons []deadletter.Reason) table {
	t := table{header: []string{"REASON", "LETTERS", "OLDEST", "NEWEST"}}
	for _, r := range reasons {
		t.add(r.Reason, r.Count, r.Oldest.Format(time.RFC3339), r.Newest.Format(time.RFC3339))
	}
	return t
}

// listLetters pages through the log up to the filter's limit; next is where there would have been more.
func listLetters(
	ctx context.Context, letters *deadletter.Letters, f deadletter.Filter, after dedup.Cursor,
) (found []deadletter.Letter, next dedup.Cursor, err error) {
	limit := f.Limit
	for {
		f.Limit = dedup.MaxListed
		if limit > 0 {
			f.Limit = min(limit-len(found), dedup.MaxListed)
		}
		page, next, err := letters.List(ctx, f, after)
		if err != nil {
			return nil, "", err
		}
		found = append(found, page...)
		if next == "" || limit > 0 && len(found) >= limit {
			return found, next, nil
		}
		after = next
	}
}
