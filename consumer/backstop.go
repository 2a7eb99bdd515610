package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// processBackstop is the life of what the broker itself took off the main queue (the delivery limit, a policy): it gets a
// row and a letter, and the handler never runs on it, because running it may be what killed the process so often.
func (l *lane) processBackstop(ctx context.Context, b *batch) error {
	l.identify(b)
	for ; len(b.open) > 0; b.nextPass() {
		wait, err := l.routeBackstop(ctx, b)
		if err != nil {
			return fmt.Errorf("backstop, batch of %d: %w", len(b.all), err)
		}
		b.slow = wait > 0
		if err := l.settle(ctx, b); err != nil {
			return fmt.Errorf("backstop, batch of %d: %w", len(b.all), err)
		}
		if wait > 0 { // somebody is at it: see what comes of it
			if err := l.enough(b); err != nil {
				return err
			}
			l.clock.rest()
			if err := sleep(ctx, min(wait, time.Second)); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeBackstop ends every open item, but for those whose lease lives; it says how long the longest of these does.
func (l *lane) routeBackstop(ctx context.Context, b *batch) (wait time.Duration, err error) {
	rows, err := l.rowsOf(ctx, b.open)
	if err != nil {
		return 0, err
	}
	for _, it := range b.open {
		it.row = rows[it.id.Key]
		switch {
		case differs(it):
			l.conflict(b, it)
		case it.row.Status == dedup.Processing && it.row.LeaseLive:
			wait = max(wait, it.row.Wait)
			b.later = append(b.later, it)
		case it.row.Status == dedup.Success:
			it.end(Duplicate, ack{})
		case it.row.Status == dedup.Dead && it.circumstances().LetterOf == it.row.Replays:
			it.end(DuplicateOfDead, moveLetter{}) // it is the row's letter, moved by hand
		case it.row.Status == dedup.Dead, it.row.Status == dedup.Discarded:
			it.end(DuplicateOfDead, ack{})
		default:
			if err := l.buryBackstop(ctx, it); err != nil {
				return 0, err
			}
		}
	}
	b.open = nil
	return wait, nil
}

// buryBackstop asks for a letter. A row whose lease expired is claimed first, so that nobody else attempts it meanwhile.
func (l *lane) buryBackstop(ctx context.Context, it *item) error {
	cause := fmt.Sprintf("delivered over %d times by RabbitMQ without being settled", it.delivery.Count)
	if it.row.Status == dedup.Processing {
		if it.row.Attempts >= l.c.cfg.MaxAttempts {
			return l.onRow(ctx, it, func(ctx context.Context) error {
				row, err := l.c.records.Exhaust(ctx, it.row)
				if err == nil {
					it.end(DeadLettered, deadLetter{wire.ReasonDeliveryLimit, row, cause})
				}
				return err
			})
		}
		if err := l.claim(ctx, it); err != nil || it.outcome != 0 {
			return err
		}
		it.row = it.claim.Row()
	}
	it.end(DeadLettered, deadLetter{wire.ReasonDeliveryLimit, it.row, cause})
	return nil
}
