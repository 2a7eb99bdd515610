package rabbit

import (
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	// ErrClosed says that the connection or channel was over before the broker could be asked.
	ErrClosed = errors.New("the connection to RabbitMQ is closed")
	// ErrCancelled is how a subscription ends that its owner cancelled. What was delivered can still be acknowledged.
	ErrCancelled = errors.New("the subscription was cancelled")
	// ErrConsumerCancelled is how a subscription ends that the broker cancelled. The channel stays open: what was
	// delivered can still be acknowledged, but nothing more will come.
	ErrConsumerCancelled = errors.New("RabbitMQ cancelled the consumer (queue deleted, its leader lost, or a delivery unacked for longer than the consumer timeout)")
	// ErrNotOutstanding says that a tag was never delivered here or has been settled already. Nothing was sent: the broker
	// answers a second ack by closing the channel with all its unacked messages.
	ErrNotOutstanding = errors.New("no unsettled delivery has this tag")

	// ErrUnroutable says that the broker took the message and had no queue for it: it is gone.
	ErrUnroutable = errors.New("no queue takes this message")
	// ErrNacked says that the broker refused the message for now, for example because a queue is full.
	ErrNacked = errors.New("RabbitMQ did not take the message (nack: a queue is full or unavailable)")
	// ErrUnconfirmed says that it is unknown whether the broker has the message. Publish it again.
	ErrUnconfirmed = errors.New("RabbitMQ did not confirm the message; it may have it")
	// ErrForbidden says that the user may not publish there.
	ErrForbidden = errors.New("RabbitMQ does not allow this user to publish here")
	// ErrUnsendable says that this very message can never be published as it is; the error tells why.
	ErrUnsendable = errors.New("the message cannot be sent")
)

// BrokerError is RabbitMQ's own reason for closing a channel or connection.
type BrokerError struct {
	Code int    // AMQP reply code, for example 404
	Text string // the broker's words
}

func (e *BrokerError) Error() string { return fmt.Sprintf("RabbitMQ: %d %s", e.Code, e.Text) }

// AMQP reply codes that this package tells apart.
const (
	codeRefused      = amqp.AccessRefused
	codeNotFound     = amqp.NotFound
	codePrecondition = amqp.PreconditionFailed
)

// translate turns the client's errors into those of this package, which can be read and matched without importing the client.
func translate(err error) error {
	e, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return err
	case e == amqp.ErrClosed:
		return ErrClosed
	case e.Server:
		return &BrokerError{Code: e.Code, Text: e.Reason}
	}
	return fmt.Errorf("%w: %s", ErrClosed, e.Reason)
}

// hasCode reports whether the broker gave this reply code.
func hasCode(err error, code int) bool {
	e, ok := errors.AsType[*BrokerError](err)
	return ok && e.Code == code
}
