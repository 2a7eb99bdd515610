package rabbit

import (
	"math"
	"reflect"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Table is a set of AMQP headers. Values arrive as any integer or float type, bool, string, []byte, time.Time, Decimal,
// nil, []any or Table; a producer chooses which, so never assert one type: see [Int].
type Table = amqp.Table

// Decimal is AMQP's decimal header value.
type Decimal = amqp.Decimal

// Delivery modes of a message.
const (
	Transient  = amqp.Transient
	Persistent = amqp.Persistent
)

// Message is a body with its AMQP properties and headers. Absent properties are zero.
type Message struct {
	Body            []byte
	Headers         Table
	ContentType     string
	ContentEncoding string
	MessageID       string
	CorrelationID   string
	ReplyTo         string
	Type            string
	AppID           string
	Timestamp       time.Time // whole seconds on the wire
	Priority        uint8
	DeliveryMode    uint8
	// UserID and Expiration are only ever read: publishing a foreign UserID closes the channel, and an Expiration lets
	// a message vanish. Publish leaves both out.
	UserID, Expiration string
}

// Delivery is one arrival of a message.
type Delivery struct {
	Message
	Tag         uint64    // what Ack and Requeue name; unique within its subscription
	Redelivered bool      // maybe seen before, nothing more
	Came        time.Time // to this process; RabbitMQ's consumer timeout counts from there
	Exchange    string
	RoutingKey  string
	// Count is how often it came back before, by what quorum queues write; 0 if unknown. From RabbitMQ 4.3 what was given
	// back in good order (basic.nack) does not count, before that it does.
	Count int
}

// fromClient takes what the client read. Acquired: the broker writes x-acquired-count (RabbitMQ 4.3).
func fromClient(d *amqp.Delivery, acquired bool) Delivery {
	m := Delivery{
		Message: Message{
			Body: d.Body, Headers: d.Headers,
			ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
			MessageID: d.MessageId, CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo,
			Type: d.Type, AppID: d.AppId, Timestamp: d.Timestamp,
			Priority: d.Priority, DeliveryMode: d.DeliveryMode,
			UserID: d.UserId, Expiration: d.Expiration,
		},
		Tag: d.DeliveryTag, Redelivered: d.Redelivered, Exchange: d.Exchange, RoutingKey: d.RoutingKey,
	}
	if d.Redelivered {
		m.Count = timesBack(d.Headers, acquired)
	}
	return m
}

// timesBack reads how often a message came back. A producer may have forged the headers: before 4.3 RabbitMQ writes
// over x-delivery-count at each redelivery. From 4.3 it does so only when a delivery failed; x-acquired-count is what
// it writes each time, and no message failed more often than it was delivered.
func timesBack(h Table, acquired bool) int {
	failed, _ := Int(h[HeaderDeliveryCount])
	if acquired {
		given, _ := Int(h[headerAcquiredCount])
		failed = min(failed, given)
	}
	return int(min(max(0, failed), math.MaxInt32))
}

// Int reads a header value as an integer, whatever type it came in: any integer type, a float without a fraction, or
// decimal text as string or bytes.
func Int(v any) (int64, bool) {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return n.Int(), true
	case n.CanUint():
		return int64(n.Uint()), n.Uint() <= math.MaxInt64
	case n.CanFloat():
		f := n.Float()
		if f != math.Trunc(f) || f < -(1<<63) || f >= 1<<63 { // NaN differs from itself
			return 0, false
		}
		return int64(f), true
	}
	text, ok := v.(string)
	if b, isBytes := v.([]byte); isBytes {
		text, ok = string(b), true
	}
	if !ok { // an error that nobody reads is made for nothing, for each message that lacks the header
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}
