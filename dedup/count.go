package dedup

import (
	"context"
	"fmt"
)

// MaxCounted is where CountDead stops counting.
const MaxCounted = 100_000

// CountDead is the number of rows in Dead, MaxCounted at most, so that looking never takes long. It reads an index
// only.
func (l *Log) CountDead(ctx context.Context) (int, error) {
	text := "SELECT COUNT(*) FROM (SELECT 1 FROM " + l.table + " WHERE consumer_status = ? LIMIT ?) AS dead"
	var n int
	if err := l.db.QueryRowContext(ctx, text, int(Dead), MaxCounted).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the rows in %v: %w", Dead, err)
	}
	return n, nil
}
