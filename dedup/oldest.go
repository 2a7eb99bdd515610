package dedup

import (
	"context"
	"fmt"
)

// Oldest is the row of a group that has stood longest in each of the states that wait for somebody: processing, failed,
// dead. A state without a row is not in the map.
func (l *Log) Oldest(ctx context.Context, group string) (map[Status]Row, error) {
	oldest := map[Status]Row{}
	for _, status := range []Status{Processing, Failed, Dead} {
		err := l.scan(ctx, func(r Row) { oldest[status] = r }, "SELECT "+rowColumns+" FROM "+l.table+
			" FORCE INDEX (by_status) WHERE consumer_status = ? AND group_name = ? ORDER BY consumer_timestamp LIMIT 1",
			int(status), []byte(group))
		if err != nil {
			return nil, fmt.Errorf("read the oldest row in %v: %w", status, err)
		}
	}
	return oldest, nil
}
