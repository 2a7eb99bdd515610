package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// waitForLeases waits for those who are at what the backstop delivered.
func (w *worker) waitForLeases(ctx context.Context, b *batch) error {
	if b.lease == 0 {
		return nil
	}
	if err := w.enough(b); err != nil {
		return err
	}
	w.clock.rest()
	err := wait.For(ctx, min(b.lease, time.Second))
	b.lease = 0
	return err
}

// buryAll asks for the letters of what the backstop delivered.
func (w *worker) buryAll(ctx context.Context, b *batch) error {
	for _, it := range b.alone {
		if err := w.bury(ctx, b, it); err != nil {
			return err
		}
	}
	b.alone = nil
	return nil
}

// bury asks for a letter. A row whose lease expired is claimed first, so that nobody else attempts it meanwhile.
func (w *worker) bury(ctx context.Context, b *batch, it *item) error {
	var err error
	switch {
	case it.row.Status != dedup.Processing:
	case it.row.Attempts >= w.c.cfg.MaxAttempts:
		err = w.transition(ctx, it, func(ctx context.Context) (dedup.Row, error) { return w.c.records.Exhaust(ctx, it.row) })
	default:
		t := &attempt{worker: w, b: b, way: way{claimed: true, most: 1}, group: group{items: []*item{it}}}
		if err = t.claim(ctx); it.claim != nil {
			it.row = it.claim.Row()
		}
	}
	if err != nil || it.outcome != 0 {
		return err
	}
	it.bury(dedup.ReasonDeliveryLimit, whyGivenUp(it, w.c.cfg.Queue))
	if it.claimedLetter() { // its lease would end while others of the batch, or the letter, wait
		_, err = w.condemn(ctx, []*item{it})
	}
	return err
}

// whyGivenUp is what the broker says of the main queue. The delivery's own count is no such thing: it is the backstop's
// on RabbitMQ 3, and that of both queues together on RabbitMQ 4.
func whyGivenUp(it *item, queue string) string {
	why := wire.LastDeath(it.delivery.Headers, queue)
	switch why {
	case "":
		why = fmt.Sprintf("moved to %s, not by RabbitMQ's account of it", rabbit.BackstopQueue(queue))
	case "delivery_limit":
		why = fmt.Sprintf("given up by RabbitMQ: it came back unsettled to %s more often than its delivery limit allows "+
			"(%d, unless a policy sets less)",
			queue, rabbit.DeliveryLimit)
	default:
		why = fmt.Sprintf("taken off %s by RabbitMQ: %s", queue, why)
	}
	if n := it.copied.Deliveries; n > 0 {
		why += fmt.Sprintf("; earlier copies of it came back unsettled %d times", n)
	}
	return why
}
