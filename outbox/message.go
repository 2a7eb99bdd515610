package outbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rollbackd/rollbackd/dedup"
)

// ErrInvalid says that a message cannot be put, because the daemon would refuse it or RabbitMQ cannot carry it. A
// message whose tag or key is unusable is a [dedup.ErrIdentity] too.
var ErrInvalid = errors.New("the message cannot be put")

// Bounds of a message, in bytes, besides dedup.MaxTag and dedup.MaxKey.
const (
	MaxBody    = dedup.MaxBody // what the daemon takes
	MaxHeaders = 64 << 10      // all headers as JSON: they must fit into one frame of AMQP, beside those of copies
	maxShort   = 255           // of a short string of AMQP
)

// reservedTags begin the tags that the daemon itself files messages under.
const reservedTags = "rollbackd."

// Message is what is to be published. Tag and Key make its identity for the daemon that consumes it: the relay sends
// them as the AMQP type, and as message_id and the header x-message-key.
type Message struct {
	Tag string // the kind of message; 1 to dedup.MaxTag bytes
	Key string // the message's own key; 1 to dedup.MaxKey bytes

	// Body is sent as it is; at most MaxBody bytes. Value, if there is no Body, is marshalled as JSON.
	Body  []byte
	Value any

	ContentType string         // default application/json
	Headers     map[string]any // texts, integers, finite floats, true and false

	// Exchange and RoutingKey default, each for itself, to those of the relay: ROLLBACKD_EXCHANGE and the first of
	// ROLLBACKD_ROUTING_KEYS. RabbitMQ's exchange without a name is written as [DefaultExchange].
	Exchange, RoutingKey string

	// NotBefore is the moment before which it is not sent; Delay is how long it waits from now on by the database's
	// clock, in whole microseconds. At most one of them.
	NotBefore time.Time
	Delay     time.Duration
}

// DefaultExchange stands for RabbitMQ's exchange without a name, which takes the routing key for a queue's name.
const DefaultExchange = "(default)"

// row is a message as its row has it.
type row struct {
	tag, key, body                             []byte
	contentType, headers, exchange, routingKey []byte // nil: NULL
	notBefore                                  any    // a text, or nil
	delay                                      int64  // in microseconds
}

// Validate says what is wrong with the message, as an [ErrInvalid]: why Put would refuse it, and why a relay parks a
// row that somebody else wrote.
func (m Message) Validate() error {
	_, err := m.row()
	return err
}

// row checks the message and makes its row.
func (m Message) row() (r row, err error) {
	bad := func(format string, args ...any) (row, error) {
		return row{}, fmt.Errorf("%w: %s/%q: %w", ErrInvalid, m.Tag, m.Key, fmt.Errorf(format, args...))
	}
	// The group is the consumer's and is known to it alone.
	if err := (dedup.Identity{Group: "-", Tag: m.Tag, Key: m.Key}).Validate(); err != nil {
		return bad("%w", err)
	}
	if strings.HasPrefix(m.Tag, reservedTags) {
		return bad("its tag begins with %s, which is reserved", reservedTags)
	}
	if m.Value != nil {
		if m.Body != nil {
			return bad("it has a Body and a Value")
		}
		if m.Body, err = json.Marshal(m.Value); err != nil {
			return bad("%w", err)
		}
	}
	if len(m.Body) > MaxBody {
		return bad("the body has %d bytes, at most %d are allowed", len(m.Body), MaxBody)
	}
	for _, part := range [][2]string{
		{"content type", m.ContentType}, {"exchange", m.Exchange}, {"routing key", m.RoutingKey},
	} {
		switch name, text := part[0], part[1]; {
		case len(text) > maxShort:
			return bad("the %s has %d bytes, at most %d are allowed", name, len(text), maxShort)
		case !utf8.ValidString(text):
			return bad("the %s is not valid UTF-8", name)
		}
	}
	r = row{tag: []byte(m.Tag), key: []byte(m.Key), body: append([]byte{}, m.Body...),
		contentType: orNull(m.ContentType), exchange: orNull(m.Exchange), routingKey: orNull(m.RoutingKey)}
	if m.Exchange == DefaultExchange {
		r.exchange = []byte{}
	}
	if r.headers, err = encodeHeaders(m.Headers); err != nil {
		return bad("%w", err)
	}
	switch {
	case m.Delay < 0:
		return bad("the Delay %v is negative", m.Delay)
	case m.Delay > 0 && !m.NotBefore.IsZero():
		return bad("it has a Delay and a NotBefore")
	case !m.NotBefore.IsZero():
		at := m.NotBefore.UTC()
		if y := at.Year(); y < 1970 || y > 9000 {
			return bad("NotBefore is in the year %d", y)
		}
		r.notBefore = at.Format("2006-01-02 15:04:05.000000")
	case m.Delay > maxDelay:
		return bad("the Delay %v is longer than %v", m.Delay, maxDelay)
	}
	r.delay = m.Delay.Microseconds()
	return r, nil
}

const maxDelay = 10 * 365 * 24 * time.Hour

func orNull(s string) []byte {
	if s == "" {
		return nil
	}
	return []byte(s)
}

// Headers are those of a message as JSON has them: a number without point and exponent is an integer, with all its
// digits.
type Headers map[string]any

// UnmarshalJSON reads an object.
func (h *Headers) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	err := d.Decode((*map[string]any)(h))
	for name, v := range *h {
		if n, ok := v.(json.Number); ok && err == nil {
			if (*h)[name], err = n.Int64(); err != nil {
				(*h)[name], err = n.Float64()
			}
		}
	}
	return err
}

// encodeHeaders writes headers as a JSON object. A number without point and exponent is an integer when it is sent.
func encodeHeaders(h map[string]any) ([]byte, error) {
	if len(h) == 0 {
		return nil, nil
	}
	for name, v := range h {
		if err := checkHeader(name, v); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(h)
	if err == nil && len(text) > MaxHeaders {
		err = fmt.Errorf("the headers have %d bytes, at most %d are allowed", len(text), MaxHeaders)
	}
	return text, err
}

func checkHeader(name string, v any) error {
	if name == "" || len(name) > maxShort || !utf8.ValidString(name) {
		return fmt.Errorf("the name of header %q must have 1 to %d bytes of UTF-8", name, maxShort)
	}
	switch v := v.(type) {
	case bool, int, int8, int16, int32, int64, uint8, uint16, uint32:
		return nil
	case string:
		if utf8.ValidString(v) {
			return nil
		}
		return fmt.Errorf("header %q is not valid UTF-8", name)
	case float64:
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			return nil
		}
	}
	return fmt.Errorf("header %q is a %T; it must be a text, an integer, a finite float64, true or false", name, v)
}

// compare orders rows as the primary key does, so that two transactions that put the same keys queue up.
func (r row) compare(o row) int {
	return cmp.Or(strings.Compare(string(r.tag), string(o.tag)), strings.Compare(string(r.key), string(o.key)))
}
