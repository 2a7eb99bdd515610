package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/rollbackd/rollbackd/consumer/internal/decide"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
)

// errActsOutside says why a message cannot be rehearsed: what is done outside the transaction nobody takes back.
var errActsOutside = fmt.Errorf("%w: the handler acts outside MySQL (consumer.Calls, ROLLBACKD_HANDLER=http), and "+
	"what it does there cannot be taken back", deadletter.ErrNoRehearsal)

// Rehearse runs the handler with a message in a transaction of pool that is always rolled back, and says what would
// have become of it. No row of the log is read or written, no attempt is counted, and metrics do not see it. Its pool
// should wait for locks for a second at most, so that it gives way to what is being consumed, and for a handler as long
// as that may take.
//
// Its error is deadletter.ErrNoRehearsal when nothing more may be rehearsed here: the handler acts outside MySQL, has
// not returned, or what it wrote has stayed or may have. Of ctx's end it is that. Package admin and the daemon are its
// door.
func (c *Consumer) Rehearse(ctx context.Context, pool *sql.DB, of deadletter.Message) (deadletter.Rehearsed, error) {
	if c.service != nil {
		return deadletter.Rehearsed{}, errActsOutside
	}
	m := Message{
		Identity: of.Identity, Body: of.Body, Headers: of.Headers, MessageID: of.MessageID, ContentType: of.ContentType,
		PublishedAt: of.PublishedAt, Attempt: 1, Replays: of.Replays,
	}
	switch err := (&worker{c: c.engine}).validate(ctx, &m)[0]; {
	case errors.Is(err, ErrStuck):
		return deadletter.Rehearsed{}, fmt.Errorf("%w: with %v %w", deadletter.ErrNoRehearsal, m.Identity, err)
	case err != nil:
		return deadletter.Rehearsed{Prospect: deadletter.WouldFail, Err: err}, ctx.Err()
	}
	e := *c.effects
	e.pool, e.checks = pool, nil
	return e.rehearse(ctx, m)
}

// rehearse is apply without a row and without an end but a rollback.
func (e *effects) rehearse(ctx context.Context, m Message) (deadletter.Rehearsed, error) {
	limit := e.cfg.HandlerTimeout
	bounded, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: over %v", errHandlerTimeout, limit))
	defer cancel()
	bounded, activity := mysqldb.WithActivity(bounded)
	defer activity.Watch(ctx, e.pool, limit/4)()
	guard := &guardedTx{ours: true, changed: map[string]int64{}}
	tx, err := e.pool.BeginTx(bounded, nil)
	if err == nil {
		defer func() { _ = tx.Rollback() }() // if it fails the connection is dropped, and the server rolls back
		guard.tx = tx
		err = guard.save(bounded)
	}
	if err == nil {
		guard.ours = false
		_, err = e.call(bounded, guard, []Message{m})
		if by := blameOf(err, 1); by != nil {
			err = by[0]
		}
		if guard.left {
			return deadletter.Rehearsed{}, fmt.Errorf("%w: with %v %w", deadletter.ErrNoRehearsal, m.Identity, err)
		}
		asked := guard.returned(bounded, "ROLLBACK TO")
		if guard.over {
			return deadletter.Rehearsed{}, fmt.Errorf("%w: with %v, and it may have stayed: %w", deadletter.ErrNoRehearsal,
				m.Identity, asked)
		}
		if guard.lasts(bounded) {
			return deadletter.Rehearsed{}, fmt.Errorf("%w: with %v it has written what no rollback takes back: give that "+
				"table, in whichever schema it is, InnoDB", deadletter.ErrNoRehearsal, m.Identity)
		}
		if err = cmp.Or(err, guard.failed, asked); err == nil {
			return deadletter.Rehearsed{Prospect: deadletter.WouldApply, Changed: guard.changed}, nil
		}
	}
	told := e.explain(ctx, bounded, activity, err, guard)
	if guard.ours {
		told = e.unrun(told)
	}
	switch {
	case told.End == decide.Stopped:
		return deadletter.Rehearsed{}, told.Err
	case errors.Is(err, errUnread):
		return deadletter.Rehearsed{Prospect: deadletter.NotRehearsed, Err: err}, nil
	case told.End != decide.Failed, putsOff(err):
		return deadletter.Rehearsed{Prospect: deadletter.WouldWait, Err: told.Err}, nil
	default:
		return deadletter.Rehearsed{Prospect: deadletter.WouldFail, Err: told.Err}, nil
	}
}

// putsOff reports whether err says that it is too early.
func putsOff(err error) bool {
	what, _ := CallMeans(err)
	return what == CallLater
}
