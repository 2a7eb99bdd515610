package operator

import (
	"context"

	"github.com/rollbackd/rollbackd/deadletter"
)

// sweep walks once through the dead-letter queue and drops what is stale there by now, for every run that has ended. It
// may be ended at any time, and is begun anew then.
func (j *job) sweep(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	j.stop = cancel
	before, err := j.d.Now(ctx)
	var res deadletter.SweepResult
	if err == nil {
		j.renewed(ctx, func() { res, err = j.d.o.Letters.Sweep(ctx) })
	}
	over, cancelOver := context.WithTimeout(context.WithoutCancel(ctx), askTime)
	defer cancelOver()
	if err == nil {
		_, err = j.d.exec(over, "UPDATE "+j.d.acts+" SET work = ?, lease_until = NULL, result = "+
			"JSON_SET(CONVERT(result USING utf8mb4), '$.swept', ?) WHERE group_name = ? AND queue = ? AND work = ? AND "+
			"ended_at <= ?", workNone, res.Dropped, []byte(j.d.o.Group),
			[]byte(j.d.o.Queue), workSweep, before)
	}
	if err != nil {
		if ctx.Err() == nil {
			j.d.log.WarnContext(ctx, "the dead-letter queue could not be swept, and will be", "err", err)
		}
		j.giveUp(over)
		return
	}
	if res.Dropped > 0 {
		j.d.log.InfoContext(ctx, "stale letters dropped from the dead-letter queue", "dropped", res.Dropped, "seen", res.Seen)
	}
}
