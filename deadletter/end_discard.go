package deadletter

import (
	"context"
	"errors"

	"github.com/rollbackd/rollbackd/dedup"
)

// discardEnd: the row says so (committed), ack.
type discardEnd struct {
	*run
	why string
}

func toDiscard(r *run, why string) end {
	if r.o.DryRun {
		return &dryEnd{r, &r.tally.Discarded}
	}
	return &discardEnd{r, why}
}

func (e *discardEnd) act(ctx context.Context, letters []*letter) error {
	fault := e.change(ctx, letters, e.mark)
	if err := e.l.hook(pointDiscarded); err != nil {
		return err
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
