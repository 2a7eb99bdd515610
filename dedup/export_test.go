package dedup

import (
	"context"
	"errors"
)

// What only the tests call.

// Condemn is CondemnAll of one.
func (l *Log) Condemn(ctx context.Context, from Row, e Entry, reason Reason, cause, owner string) (Row, error) {
	rows, errs := l.CondemnAll(ctx, []Condemnation{{from, e, reason, cause, owner}})
	return rows[0], errs[0]
}

// Success is SuccessAll of one.
func (l *Log) Success(ctx context.Context, tx Execer, claim Claim) error {
	return l.SuccessAll(ctx, tx, []Claim{claim})
}

// Letter is the death of an identity without a row.
type Letter struct {
	Entry
	Reason Reason
	Cause  string
}

// DeadAll is DeadRows of letters.
func (l *Log) DeadAll(ctx context.Context, letters []Letter) error {
	all := make([]Death, len(letters))
	for i, d := range letters {
		all[i] = Death{Entry: d.Entry, Reason: d.Reason, Cause: d.Cause}
	}
	return errors.Join(l.DeadRows(ctx, all)...)
}
