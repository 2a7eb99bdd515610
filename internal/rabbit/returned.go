package rabbit

import (
	"bytes"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// sent is a message that waits for its confirmation.
type sent struct {
	index    int
	confirm  *amqp.DeferredConfirmation
	route    route
	msg      amqp.Publishing
	returned bool // it came back, or may have; guarded by session.mu
}

// flight is the messages of a session that wait for their confirmations, by delivery tag.
type flight map[uint64]*sent

// cameBack finds out whose return this is. RabbitMQ names neither the delivery tag nor anything else of the publish,
// and no mark of ours shall stand in the message; but it sends the whole message back. So it is the one on this route
// that equals it. Of several equal ones each may be the one, and if none equals it, because the broker has changed it
// on its way, each on this route: better published twice than lost.
func (f flight) cameBack(r *amqp.Return) {
	to := route{r.Exchange, r.RoutingKey}
	found := false
	for _, m := range f {
		if m.route == to && isReturnOf(r, &m.msg) {
			m.returned, found = true, true
		}
	}
	if found {
		return
	}
	for _, m := range f {
		if m.route == to {
			m.returned = true
		}
	}
}

// isReturnOf reports whether what came back equals what was sent, in everything that [toClient] sends.
func isReturnOf(r *amqp.Return, p *amqp.Publishing) bool {
	return r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && r.ReplyTo == p.ReplyTo &&
		r.ContentType == p.ContentType && r.ContentEncoding == p.ContentEncoding &&
		r.Type == p.Type && r.AppId == p.AppId && r.Priority == p.Priority && r.Timestamp.Unix() == p.Timestamp.Unix() &&
		sameTable(r.Headers, p.Headers) && bytes.Equal(r.Body, p.Body)
}

func sameTable(a, b amqp.Table) bool {
	if len(a) != len(b) {
		return false
	}
	for name, v := range a {
		if other, ok := b[name]; !ok || !sameValue(v, other) {
			return false
		}
	}
	return true
}

// sameValue compares two header values, of which [sendableValue] has made one.
func sameValue(a, b any) bool {
	switch a := a.(type) {
	case time.Time: // whole seconds on the wire
		b, ok := b.(time.Time)
		return ok && a.Unix() == b.Unix()
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !sameValue(a[i], b[i]) {
				return false
			}
		}
		return true
	case amqp.Table:
		b, ok := b.(amqp.Table)
		return ok && sameTable(a, b)
	}
	return a == b
}
