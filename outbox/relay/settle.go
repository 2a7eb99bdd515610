package relay

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

// refusals are what RabbitMQ has against one message. Anything else says nothing of it: the message may be there, or
// RabbitMQ is away.
var refusals = []error{rabbit.ErrUnroutable, rabbit.ErrNacked, rabbit.ErrUnsendable, rabbit.ErrForbidden}

// settle writes down what came of a batch, each row only where this claim still holds. No row gets its owner back to
// NULL, not even one that RabbitMQ returned: what was sent once may be somewhere, and Cancel must not call it never
// sent.
func (r *Relay) settle(ctx context.Context, c claim) error {
	var confirmed, unknown []row
	refused, unfit := map[string][]row{}, map[string][]row{} // by the reason
	var away error
	for _, one := range c.rows {
		switch err := one.verdict; {
		case err == nil:
			confirmed = append(confirmed, one)
			r.metrics.sent(time.Since(one.due))
		case errors.Is(err, errUnfit):
			unfit[err.Error()] = append(unfit[err.Error()], one)
		case slices.ContainsFunc(refusals, func(target error) bool { return errors.Is(err, target) }):
			refused[err.Error()] = append(refused[err.Error()], one)
		default:
			unknown, away = append(unknown, one), err
		}
	}
	if away != nil || len(confirmed) > 0 {
		r.troubles.told(ctx, noConfirm, away)
	}
	settled := []error{
		r.change(ctx, c, confirmed, "DELETE o FROM "+byKey),
		r.change(ctx, c, unknown, "UPDATE "+byKey+" SET next_at = UTC_TIMESTAMP(6) + INTERVAL 1 SECOND"),
	}
	day := r.cfg.ParkAfter.Microseconds()
	for reason, rows := range refused {
		r.refused(ctx, rows, "RabbitMQ does not take messages of the outbox; they are tried again", reason)
		settled = append(settled, r.change(ctx, c, rows, putOff, reasonOf(reason), day, day))
	}
	for reason, rows := range unfit {
		r.refused(ctx, rows, "messages of the outbox can never be sent, and wait for a person", reason)
		settled = append(settled, r.change(ctx, c, rows, park, reasonOf(reason)))
	}
	return errors.Join(settled...)
}

func (r *Relay) refused(ctx context.Context, rows []row, what, reason string) {
	r.metrics.refused(len(rows))
	r.cfg.Logger.WarnContext(ctx, what, "messages", len(rows), "tag", rows[0].tag, "key", rows[0].key, "reason", reason)
}

// putOff lets a message that was refused wait for 1, 2, 4 … seconds, 5 minutes at most, or parks it. The assignments
// are made from left to right, each with what stands to its left.
const putOff = "UPDATE " + byKey + " SET tries = tries + 1, reason = ?, " +
	"failed_at = COALESCE(failed_at, UTC_TIMESTAMP(6)), " +
	"parked_at = IF(failed_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6), NULL), " +
	"next_at = IF(failed_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND, '9999-12-31', " +
	"UTC_TIMESTAMP(6) + INTERVAL LEAST(300, POW(2, LEAST(tries, 10) - 1)) SECOND)"

const park = "UPDATE " + byKey + " SET reason = ?, failed_at = COALESCE(failed_at, UTC_TIMESTAMP(6)), " +
	"parked_at = UTC_TIMESTAMP(6), next_at = '9999-12-31'"

// reasonOf cuts a reason to what its column holds.
func reasonOf(text string) string {
	const most = 1000
	if runes := []rune(strings.ToValidUTF8(text, "\uFFFD")); len(runes) > most {
		return string(runes[:most])
	}
	return text
}

// change does the same to all rows that this claim still holds. A producer that puts the same message once more has its
// row locked until it commits: such a row is passed by, and comes due again when the lease ends.
func (r *Relay) change(ctx context.Context, c claim, rows []row, what string, args ...any) (err error) {
	if len(rows) == 0 {
		return nil
	}
	for range 5 { // a cluster may find out at the commit that two transactions met
		err = r.changeOnce(ctx, c, rows, what, args)
		if mysqldb.Classify(err) != mysqldb.FaultContention {
			break
		}
	}
	return err
}

func (r *Relay) changeOnce(ctx context.Context, c claim, rows []row, what string, args []any) error {
	tx, err := r.cfg.DB.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	where, keys := keysOf(rows)
	free, err := mysqldb.List(ctx, tx, func(rows *sql.Rows) (one row, err error) {
		return one, rows.Scan(&one.tag, &one.key)
	}, "SELECT msg_tag, msg_key FROM "+byKey+" WHERE "+where+" AND owner = ? FOR UPDATE SKIP LOCKED",
		append(keys, c.owner)...)
	if err != nil || len(free) == 0 {
		return err
	}
	where, keys = keysOf(free)
	if _, err := tx.ExecContext(ctx, what+" WHERE "+where, append(slices.Clone(args), keys...)...); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// pruneEvery is the time between two looks at what is parked.
const pruneEvery = 10 * time.Minute

// keepRetention deletes what is parked for too long, until ctx ends.
func (r *Relay) keepRetention(ctx context.Context) {
	for ctx.Err() == nil {
		if err := r.prune(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Logger.WarnContext(ctx, "old messages of the outbox could not be deleted", "err", err, "next_try_in",
				pruneEvery)
		}
		_ = wait.For(ctx, pruneEvery) // the loop looks at ctx
	}
}

// prune goes by the clock that is behind, the database's or this process's: one that jumps ahead deletes nothing early.
func (r *Relay) prune(ctx context.Context) error {
	_, now, _, err := r.looks.look(ctx, time.Time{})
	if err != nil {
		return err
	}
	if here := time.Now(); here.Before(now) {
		now = here
	}
	gone, err := outbox.Rows{DB: r.cfg.DB}.Drop(ctx, outbox.Filter{
		State: outbox.Parked, Until: now.Add(-r.cfg.Retention),
	}, outbox.Change{})
	if gone.Changed > 0 {
		first := gone.Rows[0]
		r.cfg.Logger.WarnContext(ctx, "deleted messages of the outbox that were parked for longer than the retention: "+
			"they were not sent, unless a try before that was", "messages", gone.Changed, "retention", r.cfg.Retention,
			"tag", first.Tag, "key", first.Key, "reason", first.Reason)
	}
	return err
}
