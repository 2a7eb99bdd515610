package dedup

import (
	"context"
	"errors"
)

// What only the tests call.

// Condemn is CondemnAll of one.
func (l *Log) Condemn(ctx context.Context, from Row, e Entry, reason Reason, cause, owner string) (Row, error) {
	return first(l.CondemnAll(ctx, []Condemnation{{from, e, reason, cause, owner}}))
}

// known are rows that know their messages, as ClaimAll takes them; fresh are messages without a row.
func known(rows []Row) (all []Claiming) {
	for _, row := range rows {
		all = append(all, Claiming{From: row})
	}
	return all
}

func fresh(entries []Entry) (all []Claiming) {
	for i := range entries {
		all = append(all, Claiming{absent(entries[i].Identity), &entries[i]})
	}
	return all
}

// Fail is FailAll of one.
func (l *Log) Fail(ctx context.Context, claim Claim, cause string) (Row, error) {
	return first(l.FailAll(ctx, []Failure{{claim, cause}}))
}

// Unclaim is UnclaimAll of one.
func (l *Log) Unclaim(ctx context.Context, claim Claim) error {
	return l.UnclaimAll(ctx, []Claim{claim})[0]
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
