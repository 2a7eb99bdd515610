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
	if err != nil {
		return amqp.Publishing{}, fmt.Errorf("publish to %s: %w: %w", route{p.Exchange, p.Key}, ErrUnsendable, err)
	}
	headers, n, err := sendableTable(p.Headers, 0)
	if err == nil && maxFrame > 0 && size+n+frameOverhead > maxFrame {
		err = fmt.Errorf("its headers and properties take %d bytes; the broker's frame_max allows %d", size+n,
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

// sendableTable copies a table with every value in a type that AMQP has, and counts the encoded bytes.
func sendableTable(t map[string]any, depth int) (amqp.Table, int, error) {
	if depth > maxDepth {
		return nil, 0, fmt.Errorf("its headers nest deeper than %d", maxDepth)
	}
	if len(t) > maxElements {
		return nil, 0, fmt.Errorf("one of its tables has %d entries; no consumer reads more than %d", len(t), maxElements)
	}
	if t == nil {
		return nil, 0, nil
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
	case int64, float64, time.Time:
		return v, 9, nil
	case int:
		return int64(v), 9, nil // the client would cut it to 32 bits
	case uint:
		return sendableUint(uint64(v))
	case uint64:
		return sendableUint(v)
	case amqp.Decimal:
		return v, 6, nil
	case string:
		return v, 5 + len(v), nil
	case []byte:
		return v, 5 + len(v), nil
	case amqp.Table:
		t, n, err := sendableTable(v, depth+1)
		return nonNil(t), 1 + max(n, 4), err
	case map[string]any:
		t, n, err := sendableTable(v, depth+1)
		return nonNil(t), 1 + max(n, 4), err
	case []any:
		return sendableArray(v, depth+1)
	}
	return nil, 0, fmt.Errorf("AMQP has no type for %T", v)
}

func nonNil(t amqp.Table) amqp.Table {
	if t == nil {
		return amqp.Table{}
	}
	return t
}

func sendableUint(v uint64) (any, int, error) {
	if v > math.MaxInt64 {
		return nil, 0, fmt.Errorf("%d is beyond AMQP's integers", v)
	}
	return int64(v), 9, nil
}

func sendableArray(a []any, depth int) (any, int, error) {
	if depth > maxDepth || len(a) > maxElements {
		return nil, 0, fmt.Errorf("an array of %d elements at depth %d is beyond %d and %d", len(a), depth, maxElements,
			maxDepth)
	}
	out, size := make([]any, len(a)), 5
	for i, v := range a {
		v, n, err := sendableValue(v, depth)
		if err != nil {
			return nil, 0, fmt.Errorf("element %d: %w", i, err)
		}
		out[i] = v
		size += n
	}
	return out, size, nil
}

// isRefusal reports whether the broker closed the channel because of what was published, not because of its own
// troubles.
func isRefusal(cause error) bool {
	return hasCode(cause, codeRefused) || hasCode(cause, codeNotFound) || hasCode(cause, codePrecondition)
}

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
	if len(open) == 1 {
		return open, nil
	}
	matches := func(p *Publishing) bool { return false }
	if limit, ok := sizeLimit(cause); ok {
		matches = func(p *Publishing) bool { return len(p.Body) > limit }
	} else if m := exchangeText.FindStringSubmatch(cause.Error()); m != nil && !hasCode(cause, codePrecondition) {
		matches = func(p *Publishing) bool { return p.Exchange == m[1] }
	}
	for _, i := range open {
		if matches(&batch[i]) {
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
	m := maxSizeText.FindStringSubmatch(cause.Error())
	if m == nil {
		return 0, false
	}
	limit, err := strconv.Atoi(m[1])
	return limit, err == nil
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
