package relay

import (
	"context"
	"time"

	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

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
