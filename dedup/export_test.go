package dedup

import (
	"context"
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

// Success is SuccessAll of one.
func (l *Log) Success(ctx context.Context, tx Execer, claim Claim) error {
	return l.SuccessAll(ctx, tx, []Claim{claim})
}
