package dedup

import "context"

// What only the tests call.

// Condemn is CondemnAll of one.
func (l *Log) Condemn(ctx context.Context, from Row, e Entry, reason Reason, cause, owner string) (Row, error) {
	rows, errs := l.CondemnAll(ctx, []Condemnation{{from, e, reason, cause, owner}})
	return rows[0], errs[0]
}
