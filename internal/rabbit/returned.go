package rabbit

import (
	"bytes"
	"reflect"

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
	var near, equal []*sent
	for _, m := range f {
		if m.route == to {
			near = append(near, m)
			if isReturnOf(r, &m.msg) {
				equal = append(equal, m)
			}
		}
	}
	if equal == nil {
		equal = near
	}
	for _, m := range equal {
		m.returned = true
	}
}

// isReturnOf reports whether what came back equals what was sent, in everything that [toClient] sends.
func isReturnOf(r *amqp.Return, p *amqp.Publishing) bool {
	return r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && r.ReplyTo == p.ReplyTo &&
		r.ContentType == p.ContentType && r.ContentEncoding == p.ContentEncoding &&
		r.Type == p.Type && r.AppId == p.AppId && r.Priority == p.Priority && r.Timestamp.Unix() == p.Timestamp.Unix() &&
		(len(r.Headers)+len(p.Headers) == 0 || reflect.DeepEqual(r.Headers, p.Headers)) && bytes.Equal(r.Body, p.Body)
}
