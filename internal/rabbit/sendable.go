package rabbit

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const maxShortString = 255 // AMQP properties, header names, exchange and routing key

// toClient turns a publishing into the client's form. What the client or the broker would answer by closing the
// channel, with everybody's messages on it, is refused here with ErrUnsendable.
func toClient(p *Publishing, maxFrame int) (amqp.Publishing, error) {
	size, err := propertyBytes(p)
	var headers amqp.Table
	if err == nil {
		var n int
		headers, n, err = sendableTable(p.Headers, 0)
		size += n
	}
	if err == nil && maxFrame > 0 && size+frameOverhead > maxFrame {
		err = fmt.Errorf("its headers and properties take %d bytes; the broker's frame_max allows %d", size,
			maxFrame-frameOverhead)
	}
	if err != nil {
		return amqp.Publishing{}, fmt.Errorf("publish to %s: %w: %w", route{p.Exchange, p.Key}, ErrUnsendable, err)
	}
	return amqp.Publishing{
		Headers: headers, Body: p.Body,
		ContentType: p.ContentType, ContentEncoding: p.ContentEncoding,
		MessageId: p.MessageID, CorrelationId: p.CorrelationID, ReplyTo: p.ReplyTo,
		Type: p.Type, AppId: p.AppID, Timestamp: p.Timestamp, Priority: p.Priority,
		DeliveryMode: amqp.Persistent,
	}, nil
}

func propertyBytes(p *Publishing) (int, error) {
	size := headerFixedBytes + 1 + 1 + 8 // delivery mode, priority, timestamp
	for _, f := range []struct{ name, value string }{
		{"exchange", p.Exchange}, {"routing key", p.Key},
		{"content type", p.ContentType}, {"content encoding", p.ContentEncoding},
		{"message_id", p.MessageID}, {"correlation_id", p.CorrelationID}, {"reply_to", p.ReplyTo},
		{"type", p.Type}, {"app_id", p.AppID},
	} {
		if len(f.value) > maxShortString {
			return 0, fmt.Errorf("its %s has %d bytes; AMQP allows %d", f.name, len(f.value), maxShortString)
		}
		size += 1 + len(f.value)
	}
	return size, nil
}

// Sendable copies headers with every value in the type in which it would arrive, and counts the encoded bytes.
func Sendable(headers map[string]any) (Table, int, error) { return sendableTable(headers, 0) }

// sendableTable copies a table with every value in a type that AMQP has, and counts the encoded bytes.
func sendableTable(t map[string]any, depth int) (amqp.Table, int, error) {
	if depth > maxDepth {
		return nil, 0, fmt.Errorf("its headers nest deeper than %d", maxDepth)
	}
	if len(t) > maxElements {
		return nil, 0, fmt.Errorf("one of its tables has %d entries; no consumer reads more than %d", len(t), maxElements)
	}
	out, size := make(amqp.Table, len(t)), 4
	for name, v := range t {
		if len(name) > maxShortString {
			return nil, 0, fmt.Errorf("a header name has %d bytes; AMQP allows %d", len(name), maxShortString)
		}
		v, n, err := sendableValue(v, depth)
		if err != nil {
			return nil, 0, fmt.Errorf("header %q: %w", name, err)
		}
		out[name] = v
		size += 1 + len(name) + n
	}
	return out, size, nil
}

func sendableValue(v any, depth int) (any, int, error) {
	switch v := v.(type) {
	case nil:
		return v, 1, nil
	case bool, int8, uint8:
		return v, 2, nil
	case int16, uint16:
		return v, 3, nil
	case int32, uint32, float32:
		return v, 5, nil
	case int64, float64:
		return v, 9, nil
	case time.Time:
		return time.Unix(v.Unix(), 0), 9, nil // as it would come back
	case int:
		return int64(v), 9, nil // the client would cut it to 32 bits
	case uint:
		return sendableValue(uint64(v), depth)
	case uint64:
		if v > math.MaxInt64 {
			return nil, 0, fmt.Errorf("%d is beyond AMQP's integers", v)
		}
		return int64(v), 9, nil
	case amqp.Decimal:
		return v, 6, nil
	case string:
		return v, 5 + len(v), nil
	case []byte:
		return v, 5 + len(v), nil
	case amqp.Table:
		t, n, err := sendableTable(v, depth+1)
		return t, 1 + n, err
	case map[string]any:
		return sendableValue(amqp.Table(v), depth)
	case []any:
		return sendableArray(v, depth+1)
	}
	return nil, 0, fmt.Errorf("AMQP has no type for %T", v)
}

func sendableArray(a []any, depth int) (any, int, error) {
	if depth > maxDepth || len(a) > maxElements {
		return nil, 0, fmt.Errorf("an array of %d elements at depth %d is beyond %d and %d", len(a), depth, maxElements,
			maxDepth)
	}
	var out []any
	size := 5
	for i, v := range a {
		v, n, err := sendableValue(v, depth)
		if err != nil {
			return nil, 0, fmt.Errorf("element %d: %w", i, err)
		}
		out = append(out, v)
		size += n
	}
	return out, size, nil
}

// isRefusal reports whether the broker closed the channel because of what was published, not because of its own
// troubles.
func isRefusal(cause error) bool { return hasCode(cause, codeRefused, codeNotFound, codePrecondition) }

var (
	maxSizeText  = regexp.MustCompile(`larger than (?:configured )?max size (\d+)`)
	exchangeText = regexp.MustCompile(`exchange '([^']*)'`)
)

// blame names those of the open messages that alone can have caused a refusal, if the broker's words or their number
// tell.
func blame(batch []Publishing, open []int, cause error) (guilty, rest []int) {
	if !isRefusal(cause) {
		return nil, open
	}
	limit, sized := sizeLimit(cause)
	m := exchangeText.FindStringSubmatch(cause.Error())
	for _, i := range open {
		if len(open) == 1 || sized && len(batch[i].Body) > limit ||
			!sized && m != nil && !hasCode(cause, codePrecondition) && batch[i].Exchange == m[1] {
			guilty = append(guilty, i)
		} else {
			rest = append(rest, i)
		}
	}
	return guilty, rest
}

// sizeLimit is the largest body that the broker takes, if that is why it refused something.
func sizeLimit(cause error) (limit int, ok bool) {
	if !isRefusal(cause) {
		return 0, false
	}
	if m := maxSizeText.FindStringSubmatch(cause.Error()); m != nil {
		limit, _ = strconv.Atoi(m[1])
	}
	return limit, limit > 0
}

// refusal is the verdict on a message that the broker refuses for what it is or where it goes. A missing exchange or
// right is mended on the broker; everything else lies in the message.
func refusal(p Publishing, cause error) error {
	r := route{p.Exchange, p.Key}
	switch {
	case hasCode(cause, codeNotFound):
		return fmt.Errorf("publish to %s: %w: %w (run `rollbackd migrate`)", r, ErrUnroutable, cause)
	case hasCode(cause, codeRefused):
		return fmt.Errorf("publish to %s: %w: %w", r, ErrForbidden, cause)
	}
	return fmt.Errorf("publish to %s: %w: %w", r, ErrUnsendable, cause)
}
