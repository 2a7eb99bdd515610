package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
)

// ActsKept is how long acts are kept from their beginning; those that go on are kept in any case.
const ActsKept = 90 * 24 * time.Hour

// cleanSome bounds the rows of one statement.
const cleanSome = 1000

// Clean deletes acts that began ActsKept ago and have ended, requests that were made, or whose tokens were issued,
// OnceKept ago, and the log's minutes that are older than [dedup.MinutesKept]. One process of a fleet is enough, see
// [dedup.Log.Campaign]; two at once do no harm.
func (d *Operator) Clean(ctx context.Context) (deleted int, err error) {
	for _, s := range []struct {
		text string
		args []any
	}{
		{"DELETE FROM " + d.once + " WHERE created_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND AND group_name = ? LIMIT ?",
			[]any{int(OnceKept.Seconds()), []byte(d.o.Group), cleanSome}},
		{"DELETE FROM " + d.acts + " WHERE group_name = ? AND queue = ? AND work IN (0, 2, 3) AND created_at < " +
			"UTC_TIMESTAMP(6) - INTERVAL ? SECOND LIMIT ?",
			[]any{[]byte(d.o.Group), []byte(d.o.Queue), int(ActsKept.Seconds()), cleanSome}},
		{"DELETE FROM " + d.o.Records.MinuteTable() + " WHERE minute < TIMESTAMPDIFF(MINUTE, '1970-01-01', " +
			"UTC_TIMESTAMP() - INTERVAL ? SECOND) LIMIT ?", []any{int(dedup.MinutesKept.Seconds()), cleanSome}},
	} {
		for {
			n, err := d.exec(ctx, s.text, s.args...)
			if err != nil {
				return deleted, fmt.Errorf("delete what persons did, and daemons counted, long ago: %w", err)
			}
			if deleted += int(n); n < cleanSome {
				break
			}
		}
	}
	return deleted, nil
}
