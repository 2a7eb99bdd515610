package cli

import (
	"context"
	"errors"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/admin/view"
)

var logListCommand = command{
	use:   "list",
	short: "List rows of the consumer log, by status, the latest first",
	long: `List rows of the consumer log: by status in the order processing, success, failed, dead, discarded, within a
status the latest transition first. Every page is read through an index, however large the log is.`,
	example: "  PROGRAM log list --status processing,failed --until 1h",
	needs:   needsLog,
	flags: func(f *flags) work {
		statuses := some(f, "status", "only rows in these: ", dedup.Statuses(), f.StringSlice)
		var filter dedup.Filter
		f.StringVar(&filter.Tag, "tag", "", "only rows with this tag")
		f.StringArrayVar(&filter.Keys, "key", nil, "only rows with this key; may be repeated")
		since, until := f.span("whose last transition came then or later: a time like 2026-11-21T08:00:00Z, or a "+
			"duration like 24h", "whose last transition came before then, said as for --since")
		wanted := f.listing(100)
		f.check(func() error {
			if n := len(filter.Keys); n > dedup.MaxListedKeys {
				return usageErrorf("%d keys: at most %d", n, dedup.MaxListedKeys)
			}
			return nil
		})
		return func(ctx context.Context, c *call) error {
			filter.Group, filter.Since, filter.Until, filter.Statuses = c.cfg.Group, *since, *until, *statuses
			return list(c, wanted, func() { c.sayUnknownGroup(ctx) }, func(most int, after dedup.Cursor) (
				[]view.Row, dedup.Cursor, error) {
				filter.After, filter.Limit = after, min(most, dedup.MaxListed)
				rows, next, err := c.Records.List(ctx, filter)
				if errors.Is(err, dedup.ErrCursor) {
					err = usageErrorf("--after: %w", err)
				}
				return view.RowsOf(rows), next, err
			}, []string{"SINCE", "TAG", "KEY", "STATUS", "REASON", "ATTEMPTS", "REPLAYS", "REMARK"}, func(r view.Row) []any {
				return []any{date(r.Since), r.Tag, r.Key, r.Status, r.Reason, r.Attempts, r.Replays, c.fitting(r.Remark)}
			})
		}
	},
}
