package deadletter

import (
	"context"
	"errors"

	"github.com/rollbackd/rollbackd/dedup"
)

// discardEnd: the row says so (committed), ack.
type discardEnd struct {
	*run
	why  string
	done func(*letter) // told of each whose row says so
}

func toDiscard(r *run, why string, done func(*letter)) end {
	if r.o.DryRun {
		return &dryEnd{r, &r.tally.Discarded}
	}
	return &discardEnd{r, why, done}
}

func (e *discardEnd) act(ctx context.Context, letters []*letter) error {
	fault := e.change(ctx, letters, e.mark)
	if err := e.l.hook(pointDiscarded); err != nil {
		return err
	}
	for _, lt := range letters {
		if lt.why == "" {
			e.done(lt)
		}
	}
	return errors.Join(fault, e.finish(ctx, letters, &e.tally.Discarded))
}

// mark makes the letters' rows say discarded.
func (e *discardEnd) mark(ctx context.Context, letters []*letter, _ string) []error {
	all := make([]dedup.Discarding, len(letters))
	for i, lt := range letters {
		all[i] = dedup.Discarding{From: lt.row, Entry: lt.entry(), By: e.o.By, Why: e.why + " (chosen: " + e.asked + ")"}
	}
	return e.l.o.Records.DiscardAll(ctx, all)
}
