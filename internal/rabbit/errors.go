package rabbit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	// ErrClosed says that the connection or channel was over before the broker could be asked.
	ErrClosed = errors.New("the connection to RabbitMQ is closed")
	// ErrCancelled is how a subscription ends that its owner cancelled. What was delivered can still be acknowledged.
	ErrCancelled = errors.New("the subscription was cancelled")
	// ErrConsumerCancelled is how a subscription ends that the broker cancelled. The channel stays open: what was
	// delivered can still be acknowledged, but nothing more will come.
	ErrConsumerCancelled = errors.New("RabbitMQ cancelled the consumer (queue deleted, its leader lost, or a delivery " +
		"unacked for longer than the consumer timeout)")
	// ErrNoRoom says that what is unsettled fills a subscription's share of the memory budget, so that nothing more can
	// come before some of it is settled.
	ErrNoRoom = errors.New("deliveries in hand fill the share of the memory budget")
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

// Refused reports whether the broker has told of this very message that it does not have it: err is ErrUnroutable,
// ErrNacked, ErrForbidden or ErrUnsendable. Any other error of Publish is the connection's, and the broker may have the
// message.
func Refused(err error) bool {
	return slices.ContainsFunc([]error{ErrUnroutable, ErrNacked, ErrForbidden, ErrUnsendable}, func(told error) bool {
		return errors.Is(err, told)
	})
}

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
	codeFrame        = amqp.FrameError // the first of those that end a connection
)

// translateOpen is translate for a connection that stood: whoever writes on it before the client's reader has seen that
// it is cut gets the socket's own error.
func translateOpen(err error) error {
	if ofSocket(err) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return translate(err)
}

// translate turns the client's errors into those of this package, which can be read and matched without importing the
// client.
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

func ofSocket(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// IsBroken reports whether err is the end of a connection that nobody meant: a cut, silence, what one of the two sides
// could not read. A connection that the broker or its operator closes in order is not broken.
func IsBroken(err error) bool {
	if e, ok := errors.AsType[*BrokerError](err); ok {
		return e.Code >= codeFrame
	}
	return errors.Is(err, ErrClosed)
}

// hasCode reports whether the broker gave one of these reply codes.
func hasCode(err error, codes ...int) bool {
	e, ok := errors.AsType[*BrokerError](err)
	return ok && slices.Contains(codes, e.Code)
}
