package operator

import (
	"context"
	"encoding/json"

	"github.com/rollbackd/rollbackd/deadletter"
)

// sweep walks once through the dead-letter queue and drops what is stale there by now, for every run that has ended. It
// may be ended at any time, and is begun anew then.
func (j *job) sweep(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.stop = cancel
	ended, err := j.d.unswept(ctx)
	if err != nil {
		j.giveUp(context.WithoutCancel(ctx))
		return
	}
	var res deadletter.SweepResult
	j.renewed(ctx, func() { res, err = j.d.o.Letters.Sweep(ctx) })
	over, cancelOver := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancelOver()
	if err != nil {
		if ctx.Err() == nil {
			j.d.log.WarnContext(ctx, "the dead-letter queue could not be swept, and will be", "err", err)
		}
		j.giveUp(over)
		return
	}
	for _, id := range ended {
		if err := j.d.swept(over, id, res.Dropped); err != nil {
			j.d.log.WarnContext(ctx, "a sweep could not be written down, and is done again", "act", id, "err", err)
		}
	}
	if res.Dropped > 0 {
		j.d.log.InfoContext(ctx, "stale letters dropped from the dead-letter queue", "dropped", res.Dropped, "seen", res.Seen)
	}
}

// maxSwept bounds the runs that one walk is for.
const maxSwept = 500

// unswept are the runs that have ended and whose letters may lie in the queue yet.
func (d *Operator) unswept(ctx context.Context) (ids []string, err error) {
	rows, err := d.db.QueryContext(ctx, "SELECT id FROM "+d.acts+" WHERE group_name = ? AND queue = ? AND work = ? "+
		"ORDER BY id LIMIT ?", []byte(d.o.Group), []byte(d.o.Queue), workSweep, maxSwept)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// swept notes that the queue was swept after a run, and how many letters were dropped for it and the others.
func (d *Operator) swept(ctx context.Context, id string, dropped int) error {
	a, err := d.Act(ctx, id)
	if err != nil || a.Result == nil {
		return err
	}
	a.Result.Swept = dropped
	text, err := json.Marshal(a.Result)
	if err != nil {
		return err
	}
	_, err = d.db.ExecContext(ctx, "UPDATE "+d.acts+" SET work = ?, lease_until = NULL, result = ? WHERE id = ? AND "+
		"work = ?",
		workNone, text, []byte(id), workSweep)
	return err
}
