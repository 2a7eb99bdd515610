package relay

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/outbox"
)

// stored is a row as the table has it.
type stored struct {
	tag, key             []byte
	body                 []byte // nil: too large
	size                 int64
	contentType, headers []byte // nil: NULL
	exchange, routingKey *string
	put, due             sql.NullString // as texts
	late                 sql.NullInt64  // microseconds since then
}

const headerKey = "x-message-key"

// errUnfit says of a row that no message can be made of it, so it was not sent.
var errUnfit = errors.New("it cannot be sent")

// row makes a message of a row. What Put would have refused, and what a client that cuts values may have cut, is unfit.
func (r *Relay) row(w stored) row {
	m := outbox.Message{Tag: string(w.tag), Key: string(w.key), Body: w.body, ContentType: string(w.contentType)}
	out := row{tag: m.Tag, key: m.Key, due: time.Now().Add(-time.Duration(w.late.Int64) * time.Microsecond)}
	var headers outbox.Headers
	var err error
	if w.headers != nil {
		err = json.Unmarshal(w.headers, &headers)
	}
	m.Headers = headers
	to := rabbit.Publishing{Exchange: r.cfg.Exchange, Key: r.cfg.RoutingKey}
	if w.exchange != nil {
		to.Exchange, m.Exchange = *w.exchange, *w.exchange
	}
	if w.routingKey != nil {
		to.Key, m.RoutingKey = *w.routingKey, *w.routingKey
	}
	due, timeErr := time.Parse(timeForm, w.due.String)
	var unfit error
	switch {
	case w.body == nil:
		unfit = fmt.Errorf("the body has %d bytes, at most %d are allowed", w.size, outbox.MaxBody)
	case err != nil:
		unfit = fmt.Errorf("its headers are not a JSON object of texts, numbers, true and false: %w", err)
	case timeErr != nil:
		unfit = fmt.Errorf("its due_at %q is no time", w.due.String)
	case to.Key == "":
		unfit = errors.New("it has no routing key, and the relay has none for it")
	default:
		unfit = m.Validate()
	}
	if unfit != nil {
		out.verdict = fmt.Errorf("%w: %w", errUnfit, unfit)
		return out
	}
	table := rabbit.Table{rabbit.HeaderPublishedAt: due.UnixMilli(), headerKey: m.Key}
	if put, err := time.Parse(timeForm, w.put.String); err == nil { // else it is not told
		table[rabbit.HeaderPutAt], table[rabbit.HeaderSentAt] = put.UnixMilli(), time.Now().UnixMilli()
	}
	for name, v := range headers {
		table[name] = v
	}
	to.Message = rabbit.Message{
		Body: w.body, Headers: table, MessageID: m.Key, Type: m.Tag, DeliveryMode: rabbit.Persistent,
		ContentType: cmp.Or(m.ContentType, "application/json"),
	}
	out.publishing = to
	return out
}
