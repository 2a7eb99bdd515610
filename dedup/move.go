package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
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

// apply makes one transition inside tx. Whatever its error, the transaction must be rolled back.
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
	e := l.event(c)
	if _, err := tx.ExecContext(ctx, e.String(), e.args...); err != nil {
		return fmt.Errorf("write the event: %w", err)
	}
	return nil
}

// duplicateKey is MySQL's number for a row that violates a unique index.
const duplicateKey = 1062

// exists reports whether err is a 1062 of the log's own primary key. One of another table, met through a trigger, says
// nothing about our row.
func (l *Log) exists(err error) bool {
	server, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok || server.Number != duplicateKey {
		return false
	}
	_, index, ok := cutLast(server.Message, " for key '")
	if !ok {
		return false
	}
	index = strings.TrimSuffix(index, "'")
	// MariaDB names the index alone, MySQL 8 the table too: in small letters where lower_case_table_names is 1.
	return index == "PRIMARY" || strings.EqualFold(index, l.o.Table+".PRIMARY")
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
