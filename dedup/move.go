package dedup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// move makes one transition, together with its event, in a transaction of its own.
//
// It may be repeated after ErrUnknown: when the row stands as this very call would leave it, under a token that nobody
// else uses, the call is done. So an answer that got lost costs neither an attempt nor a lease.
func (l *Log) move(ctx context.Context, c *change) error {
	err := l.inTx(ctx, func(tx Execer) error { return l.apply(ctx, tx, c) })
	if c.own && (errors.Is(err, ErrLost) || errors.Is(err, ErrUnknown)) {
		ours, lookErr := l.Holds(ctx, c.key, c.to)
		if lookErr == nil && ours {
			return nil
		}
		if errors.Is(err, ErrLost) && lookErr != nil {
			err = lookErr // whether it is lost is not known: an earlier call of ours may have moved the row
		}
	}
	if err != nil {
		return fmt.Errorf("%s %v: %w", c.step.Action, c.key, err)
	}
	return nil
}

// moveAll makes many transitions in one transaction, each with its event, in the order of their keys. Those of one
// shape share statements; when these do not find every row as it was read, all is undone and each has statements of its
// own.
// One that is lost does not hinder the others; any other error is one of all. For the rest it is like move: what each
// call came to stands in errs, which is as long as changes.
func (l *Log) moveAll(ctx context.Context, changes []*change) (errs []error) {
	errs = make([]error, len(changes))
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return changes[a].key.Compare(changes[b].key) })
	err := errShort
	if len(changes) > 1 {
		sorted := make([]*change, len(order))
		for i, at := range order {
			sorted[i] = changes[at]
		}
		err = l.inTx(ctx, func(tx Execer) error { return l.applyMany(ctx, tx, sorted) })
	}
	if errors.Is(err, errShort) { // one by one tells which
		err = l.inTx(ctx, func(tx Execer) error {
			for _, i := range order {
				errs[i] = l.apply(ctx, tx, changes[i])
				if errs[i] != nil && !errors.Is(errs[i], ErrLost) {
					return errs[i]
				}
			}
			return nil
		})
	}
	for i := range changes {
		if err != nil {
			errs[i] = err
		}
	}
	l.recognise(ctx, changes, errs)
	for i, c := range changes {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%s %v: %w", c.step.Action, c.key, errs[i])
		}
	}
	return errs
}

// recognise clears the errors of changes that were lost, or whose answer was, and whose rows stand as they would have
// left them.
func (l *Log) recognise(ctx context.Context, changes []*change, errs []error) {
	doubtful := func(i int) bool {
		return changes[i].own && (errors.Is(errs[i], ErrLost) || errors.Is(errs[i], ErrUnknown))
	}
	var keys []Identity
	for i, c := range changes {
		if doubtful(i) {
			keys = append(keys, c.key)
		}
	}
	if len(keys) == 0 {
		return
	}
	rows, err := l.LookUp(ctx, keys)
	for i, c := range changes {
		switch {
		case !doubtful(i):
		case err == nil && rows[c.key].Version == c.to:
			errs[i] = nil
		case err != nil && errors.Is(errs[i], ErrLost):
			errs[i] = err // whether it is lost is not known: an earlier call of ours may have moved the row
		}
	}
}

// apply makes one transition inside tx. After ErrLost the transaction may go on; after any other error it must be
// rolled back.
func (l *Log) apply(ctx context.Context, tx Execer, c *change) error {
	var s statement
	if c.from.Status == Absent {
		s = l.insert(c)
	} else {
		s = l.update(c)
	}
	res, err := tx.ExecContext(ctx, s.String(), s.args...)
	if c.from.Status == Absent && l.exists(err) {
		return ErrLost
	}
	if err != nil {
		return err
	}
	affected, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if affected != 1 {
		return ErrLost
	}
	if e := l.event(c); !c.silent {
		if _, err := tx.ExecContext(ctx, e.String(), e.args...); err != nil {
			return fmt.Errorf("write the event: %w", err)
		}
	}
	if c.also == nil {
		return nil
	}
	if err := l.apply(ctx, tx, c.also); !errors.Is(err, ErrLost) {
		return err
	}
	return nil // it is so already
}

// exists reports whether err is a duplicate in the log's own primary key. One of another table, met through a trigger,
// says nothing about our row.
func (l *Log) exists(err error) bool {
	return mysqldb.DuplicateIn(err, l.o.Table, "PRIMARY")
}
