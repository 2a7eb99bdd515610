package cli

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

var logListCommand = command{
	use:   "list",
	short: "List rows of the consumer log, by status, the latest first",
	long: `List rows of the consumer log: by status in the order processing, success, failed, dead, discarded, within a
status the latest transition first. Every page is read through an index, however large the log is.`,
	example: "  PROGRAM log list --status processing,failed --until 1h",
	flags: func(f *flags) work {
		out := f.output()
		var words []string
		for _, s := range dedup.Statuses() {
			words = append(words, s.String())
		}
		known := strings.Join(words, ", ")
		asked := f.StringSlice("status", nil, "only rows in these: "+known)
		f.offer("status", words...)
		var filter dedup.Filter
		f.check(func() error {
			for _, w := range *asked {
				i := slices.Index(words, strings.TrimSpace(w))
				if i < 0 {
					return usageErrorf("--status %q is none; there are %s", w, known)
				}
				filter.Statuses = append(filter.Statuses, dedup.Statuses()[i])
			}
			return nil
		})
		f.StringVar(&filter.Tag, "tag", "", "only rows with this tag")
		f.StringArrayVar(&filter.Keys, "key", nil, "only rows with this key; may be repeated")
		since, until := f.span("whose last transition came then or later: a time like 2026-11-21T08:00:00Z, or a "+
			"duration like 24h", "whose last transition came before then, said as for --since")
		limit := f.limit(100, "list at most so many; 0: all")
		after := f.String("after", "", "go on where the last list ended: it said how")
		f.check(func() error {
			if n := len(filter.Keys); n > dedup.MaxListedKeys {
				return usageErrorf("%d keys: at most %d", n, dedup.MaxListedKeys)
			}
			return nil
		})
		return func(ctx context.Context, c *call) error {
			if err := c.open(ctx); err != nil {
				return err
			}
			filter.Group, filter.Since, filter.Until = c.cfg.Group, *since, *until
			rows, next, err := listed(*limit, dedup.Cursor(*after), func(most int, after dedup.Cursor) (
				[]dedup.Row, dedup.Cursor, error) {
				filter.After, filter.Limit = after, min(most, dedup.MaxListed)
				return c.Records.List(ctx, filter)
			})
			if errors.Is(err, dedup.ErrCursor) {
				return usageErrorf("--after: %w", err)
			}
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				c.sayUnknownGroup(ctx)
			}
			c.sayMore(string(next))
			return c.showRows(out, rows)
		}
	},
}

func (c *call) showRows(out *output, rows []dedup.Row) error {
	t := table{header: []string{"SINCE", "TAG", "KEY", "STATUS", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}}
	all := view.RowsOf(rows)
	for _, r := range all {
		t.add(date(r.Since), r.Tag, r.Key, r.Status, r.Reason, r.Attempts, r.Replays, c.fitting(r.Remark))
	}
	return out.render(c.stdout, all, t)
}
