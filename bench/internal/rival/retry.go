package rival

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// next is the queue that a message goes to whose attempt has failed: the retry queue of the next delay, or after the
// last attempt the dead-letter queue. Delays, attempts and queues are the product's: the queues have a TTL and
// dead-letter into the main queue.
func next(cfg config.Config, attempt int) (queue string, dead bool) {
	if attempt >= cfg.MaxAttempts {
		return rabbit.DeadQueue(cfg.Queue), true
	}
	return rabbit.RetryQueue(cfg.Queue, cfg.RetryDelays[attempt-1]), false
}

// copier sends messages on, one at a time, on a channel of its own.
type copier struct{ ch *amqp.Channel }

func newCopier(conn *amqp.Connection) (*copier, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, errors.Join(fmt.Errorf("ask for confirms: %w", err), ch.Close())
	}
	return &copier{ch}, nil
}

// send puts a copy of the delivery into a queue and waits until the broker has confirmed it: only then may the delivery
// be acked. What failed stands in a header, for whoever looks at the dead letter.
func (c *copier) send(ctx context.Context, queue string, d amqp.Delivery, cause error) error {
	const mandatory, immediate = false, false // the queue is there: who declared the main queue has declared it
	confirm, err := c.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, mandatory, immediate, amqp.Publishing{
		MessageId: d.MessageId, ContentType: d.ContentType, DeliveryMode: amqp.Persistent, Timestamp: d.Timestamp,
		Type: d.Type, Headers: amqp.Table{"x-error": cause.Error()}, Body: d.Body,
	})
	if err != nil {
		return fmt.Errorf("send %s to %s: %w", d.MessageId, queue, err)
	}
	ok, err := confirm.WaitContext(ctx)
	if err == nil && !ok {
		err = errors.New("the broker refused it")
	}
	if err != nil {
		return fmt.Errorf("send %s to %s: %w", d.MessageId, queue, err)
	}
	return nil
}
