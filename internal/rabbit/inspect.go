package rabbit

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// Inspection is what Inspect found of one queue or exchange.
type Inspection struct {
	What             string // for example: queue "stock.rollback"
	Queue            string // its name, "" for an exchange
	Ready, Consumers int    // of a queue
	Missing          bool
	Taken            bool  // as it is: its arguments were not compared
	Unchecked        bool  // it exists, but this user may not declare it, so its arguments cannot be compared
	Err              error // an ArgumentError, or why it could not be looked at
}

// Inspect compares exchange and queues with what rollbackd needs, and makes nothing: only what exists is declared,
// which compares its arguments. AMQP shows no bindings and no policies. The error is that of the connection.
func Inspect(ctx context.Context, c *Conn, t TopologyConfig) ([]Inspection, error) {
	var found []Inspection
	for _, step := range t.steps() {
		if step.check == nil {
			continue // a binding
		}
		one := Inspection{What: step.what, Queue: step.queue, Taken: step.declare == nil}
		err := c.onChannel(ctx, "check "+step.what, step.check)
		if err == nil && one.Queue != "" {
			one.Ready, one.Consumers, err = c.Depth(ctx, one.Queue)
		}
		if err == nil && !one.Taken {
			err = c.onChannel(ctx, "declare "+step.what, step.declare)
		}
		switch {
		case hasCode(err, codeNotFound):
			one.Missing = true
		case hasCode(err, codeRefused):
			one.Unchecked = true
		case hasCode(err, codePrecondition):
			one.Err = argumentError(step.what, err)
		case err != nil && c.Err() != nil:
			return found, err
		default:
			one.Err = err
		}
		found = append(found, one)
	}
	return found, nil
}

// VersionWarnings says what a broker of this version cannot do; the error, that it cannot keep rollbackd's promise.
func VersionWarnings(version string) ([]string, error) { return versionWarnings(version) }

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
