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

// routeBackstop is route for what the broker itself took off the main queue (the delivery limit, a policy): it gets a
// row and a letter, and the handler never runs on it, because running it may be what killed the process so often.
func (l *lane) routeBackstop(b *batch, it *item) {
	v := decide(it.row, it.circumstances(), l.c.cfg.MaxAttempts)
	switch {
	case it.row.Status == dedup.Processing && it.row.LeaseLive: // somebody is at it: see what comes of it
		b.lease = max(b.lease, it.row.Wait)
		b.later = append(b.later, it)
	case v == skipDone:
		it.ack(Duplicate)
	case v == reopen:
		it.end(DuplicateOfDead, settlement{by: byMove}) // it is all that is left of the message
	case v == skipDead:
		it.ack(DuplicateOfDead)
	case l.c.holding.has(it.id.Identity): // a letter of it waits for room: one is enough
		l.comeBack(it, longest)
	case it.row.Condemned():
		it.bury(reasonOf(it.row), it.row.Remark)
	default:
		b.alone = append(b.alone, it)
	}
}

// waitForLeases waits for those who are at what the backstop delivered.
func (l *lane) waitForLeases(ctx context.Context, b *batch) error {
	if b.lease == 0 {
		return nil
	}
	if err := l.enough(b); err != nil {
		return err
	}
	l.clock.rest()
	err := wait.For(ctx, min(b.lease, time.Second))
	b.lease = 0
	return err
}

// buryAll asks for the letters of what the backstop delivered.
func (l *lane) buryAll(ctx context.Context, b *batch) error {
	for _, it := range b.alone {
		if err := l.bury(ctx, b, it); err != nil {
			return err
		}
	}
	b.alone = nil
	return nil
}

// bury asks for a letter. A row whose lease expired is claimed first, so that nobody else attempts it meanwhile.
func (l *lane) bury(ctx context.Context, b *batch, it *item) error {
	var err error
	switch {
	case it.row.Status != dedup.Processing:
	case it.row.Attempts >= l.c.cfg.MaxAttempts:
		err = l.transition(ctx, it, func(ctx context.Context) (dedup.Row, error) { return l.c.records.Exhaust(ctx, it.row) })
	default:
		t := &attempt{lane: l, b: b, way: way{claimed: true, most: 1}, group: group{items: []*item{it}}}
		if err = t.claim(ctx); it.claim != nil {
			it.row = it.claim.Row()
		}
	}
	if err != nil || it.outcome != 0 {
		return err
	}
	it.bury(dedup.ReasonDeliveryLimit, whyGivenUp(it, l.c.cfg.Queue))
	if it.claimedLetter() { // its lease would end while others of the batch, or the letter, wait
		_, err = l.condemn(ctx, []*item{it})
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
