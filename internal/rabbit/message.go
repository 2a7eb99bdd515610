package rabbit

import (
	"math"
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
	// Count is how often it was delivered before, by x-delivery-count of quorum queues; 0 if unknown. At a first delivery
	// that header is the producer's, or that of a queue it was in before: it counts for nothing.
	Count int
}

func fromClient(d *amqp.Delivery) Delivery {
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
	if v, ok := d.Headers[HeaderDeliveryCount]; ok && d.Redelivered { // RabbitMQ writes over a forged one only then
		if n, ok := Int(v); ok && n > 0 {
			m.Count = int(min(n, math.MaxInt32))
		}
	}
	return m
}

// Int reads a header value as an integer, whatever type it came in: any integer type, a float without a fraction, or
// decimal text as string or bytes.
func Int(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int32:
		return int64(n), true
	case int16:
		return int64(n), true
	case int8:
		return int64(n), true
	case int:
		return int64(n), true
	case uint8:
		return int64(n), true
	case uint16:
		return int64(n), true
	case uint32:
		return int64(n), true
	case uint64:
		return int64(n), n <= math.MaxInt64
	case float32:
		return wholeFloat(float64(n))
	case float64:
		return wholeFloat(n)
	case string:
		i, err := strconv.ParseInt(n, 10, 64)
		return i, err == nil
	case []byte:
		i, err := strconv.ParseInt(string(n), 10, 64)
		return i, err == nil
	}
	return 0, false
}

func wholeFloat(f float64) (int64, bool) {
	if f != math.Trunc(f) || f < -(1<<63) || f >= 1<<63 { // NaN differs from itself
		return 0, false
	}
	return int64(f), true
}
