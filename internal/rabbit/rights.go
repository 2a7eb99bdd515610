package rabbit

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// MayRead says whether this user may consume from a queue, without taking a message when the queue is empty.
func (c *Conn) MayRead(ctx context.Context, queue string) error {
	sub, err := c.Consume(ctx, queue, ConsumerTag(0)+"/doctor", 1)
	if err != nil {
		return err
	}
	return errors.Join(sub.Cancel(ctx), sub.Close())
}

// MayBind says whether this user may bind the queue to the exchange: it takes away a binding that nobody made, which
// asks for the same rights and changes nothing.
func (c *Conn) MayBind(ctx context.Context, queue, exchange string) error {
	return c.onChannel(ctx, "unbind what is not bound", func(ch *amqp.Channel) error {
		return ch.QueueUnbind(queue, "rollbackd.doctor."+uuid.NewString(), exchange, nil)
	})
}

// blocksWithin is how long the broker may take to answer behind a message that nobody gets.
const blocksWithin = 2 * time.Second

// Blocks says why the broker takes nothing of those who publish ("low on disk"), "" when it does. Only who publishes is
// told, so it publishes a message to no queue, and asks for something behind it. Once blocked, the connection is of no
// use for anything else.
func (c *Conn) Blocks(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, blocksWithin)
	defer cancel()
	err = c.onChannel(ctx, "ask whether publishers are blocked", func(ch *amqp.Channel) error {
		key := "rollbackd.watch." + uuid.NewString()
		if err := ch.PublishWithContext(ctx, "", key, !mandatory, !immediate, amqp.Publishing{}); err != nil {
			return err
		}
		return ch.Qos(1, 0, false)
	})
	if why := c.Blocked(); why != "" {
		return why, nil
	}
	return "", err
}

// MayPublish says whether this user may publish to the exchange. The message that it tries expires at no time that
// can be read: the broker refuses it after it has looked at the right, and before it looks for queues.
func (c *Conn) MayPublish(ctx context.Context, exchange string) error {
	err := c.onChannel(ctx, "publish what cannot be taken", func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		const mandatory, immediate = true, true
		key, m := "rollbackd.doctor."+uuid.NewString(), amqp.Publishing{Expiration: "never"}
		if err := ch.PublishWithContext(ctx, exchange, key, mandatory, !immediate, m); err != nil {
			return err
		}
		if e, ok := <-closed; ok {
			return e
		}
		return amqp.ErrClosed
	})
	if hasCode(err, codePrecondition) {
		return nil
	}
	return err
}
