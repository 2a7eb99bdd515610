package wire

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Headers of rollbackd's copies. All of them only inform: the row decides. A producer who forges one is overwritten by
// the first copy.
const (
	HeaderAttempt       = "x-rollbackd-attempt"         // integer: attempts made before this copy
	HeaderReason        = "x-rollbackd-reason"          // why it is a dead letter: see dedup.Reason
	HeaderError         = "x-rollbackd-error"           // the last error, at most MaxErrorBytes
	HeaderExchange      = "x-rollbackd-exchange"        // the exchange the producer published to
	HeaderRoutingKey    = "x-rollbackd-routing-key"     // the producer's routing key
	HeaderFirstFailedAt = "x-rollbackd-first-failed-at" // RFC 3339, UTC
	HeaderDeadAt        = "x-rollbackd-dead-at"         // RFC 3339, UTC; only letters have it
	HeaderReplays       = "x-rollbackd-replays"         // integer: the row's replays when this copy was made
	// integer: how often the message was delivered before this copy was made
	HeaderDeliveries = "x-rollbackd-deliveries"
	HeaderDropped    = "x-rollbackd-dropped-headers" // integer: producer's headers that no longer fitted into a frame
	// HeaderUnreadable stands in place of the headers that the client library would not have read; copies carry it on.
	HeaderUnreadable = rabbit.HeaderUnreadable
)

const (
	ownPrefix = "x-rollbackd-"
	// HeaderPublishedAt is when the message was first published, in milliseconds since 1970. Producers may set it;
	// copies carry the first time on.
	HeaderPublishedAt = rabbit.HeaderPublishedAt
)

// MaxErrorBytes bounds the error text in a header: a header block must fit into one AMQP frame.
const MaxErrorBytes = 1024

// CopyInfo is what the headers of one of our copies say. A value that is missing, malformed or out of range is zero.
type CopyInfo struct {
	Attempt       int
	Reason        dedup.Reason // one of dedup.Reasons, or ""
	Error         string       // valid UTF-8, at most MaxErrorBytes
	Exchange      string
	RoutingKey    string
	FirstFailedAt time.Time
	DeadAt        time.Time // zero: not a letter
	Replays       int
	Deliveries    int
}

// IsCopy reports whether any header of a copy is there: of one that rollbackd published, or forged.
func (c CopyInfo) IsCopy() bool { return c != CopyInfo{} }

// ReadCopy reads the headers of a copy, whatever their types.
func ReadCopy(h rabbit.Table) CopyInfo {
	if len(h) == 0 {
		return CopyInfo{}
	}
	return CopyInfo{
		Attempt:       readCount(h[HeaderAttempt]),
		Reason:        readReason(h[HeaderReason]),
		Error:         cutText(readText(h[HeaderError]), MaxErrorBytes),
		Exchange:      readText(h[HeaderExchange]),
		RoutingKey:    readText(h[HeaderRoutingKey]),
		FirstFailedAt: readTime(h[HeaderFirstFailedAt]),
		DeadAt:        readTime(h[HeaderDeadAt]),
		Replays:       readCount(h[HeaderReplays]),
		Deliveries:    readCount(h[HeaderDeliveries]),
	}
}

func readCount(v any) int {
	n, ok := rabbit.Int(v)
	if !ok || n < 0 || n > 1<<31-1 {
		return 0
	}
	return int(n)
}

func readReason(v any) dedup.Reason {
	if r := dedup.Reason(readText(v)); slices.Contains(dedup.Reasons(), r) {
		return r
	}
	return ""
}

// textOf is a header's text; clients write text as either type.
func textOf(v any) (text string, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	}
	return "", false
}

func readText(v any) string {
	text, _ := textOf(v)
	return text
}

func readTime(v any) time.Time {
	t, ok := v.(time.Time)
	if !ok {
		t, _ = time.Parse(time.RFC3339Nano, readText(v)) // else it is the zero time
	}
	return plausible(t)
}

func writeTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// latest is the last moment that RFC 3339 can write.
var latest = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// plausible drops times that no clock shows: before 1970, after the year 9999.
func plausible(t time.Time) time.Time {
	if t.UnixMilli() <= 0 || t.After(latest) {
		return time.Time{}
	}
	return t.UTC()
}

// PublishedAt is when the message was first published: by its header x-published-at-ms, else RabbitMQ's
// timestamp_in_ms, else the AMQP timestamp (whole seconds).
func PublishedAt(m rabbit.Message) (time.Time, bool) {
	for _, name := range []string{HeaderPublishedAt, rabbit.HeaderInterceptor} {
		if ms, ok := rabbit.Int(m.Headers[name]); ok && ms > 0 && ms <= latest.UnixMilli() {
			return time.UnixMilli(ms).UTC(), true
		}
	}
	t := plausible(m.Timestamp)
	return t, !t.IsZero()
}

// cutText makes text valid UTF-8 of at most n bytes, ending at a whole character.
func cutText(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// TraceOf is the span that published a message, as its headers traceparent and tracestate say (W3C Trace Context). It
// is not valid when they say nothing, or nothing that can be read.
func TraceOf(headers rabbit.Table) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{
		"traceparent": readText(headers["traceparent"]), "tracestate": readText(headers["tracestate"]),
	}))
}

// Sending is what the relay of an outbox tells of a message: when it was put there, was due, and was sent.
type Sending struct{ Put, Due, Sent time.Time }

// ReadSending reads the headers of a message; the zero Sending of one that did not come from an outbox.
func ReadSending(h rabbit.Table) Sending {
	if _, came := h[rabbit.HeaderPutAt]; came {
		return sendingIn(h)
	}
	return Sending{}
}

func sendingIn(h rabbit.Table) (s Sending) {
	for name, at := range map[string]*time.Time{
		rabbit.HeaderPutAt: &s.Put, HeaderPublishedAt: &s.Due, rabbit.HeaderSentAt: &s.Sent,
	} {
		ms, _ := rabbit.Int(h[name])
		*at = plausible(time.UnixMilli(ms))
	}
	if s.Put.IsZero() || s.Due.IsZero() || s.Sent.IsZero() {
		return Sending{}
	}
	return s
}

// String says it for the remark of a row whose message is applied and keeps nothing else; "" for the zero Sending.
func (s Sending) String() string {
	if s.Put.IsZero() {
		return ""
	}
	return "put into the outbox " + writeTime(s.Put) + ", due " + writeTime(s.Due) + ", sent " + writeTime(s.Sent)
}

var sendingText = regexp.MustCompile(`^put into the outbox (\S+), due (\S+), sent (\S+)$`)

// SendingOf reads what String has written.
func SendingOf(remark string) (s Sending, ok bool) {
	m := sendingText.FindStringSubmatch(remark)
	if m == nil {
		return s, false
	}
	s = Sending{readTime(m[1]), readTime(m[2]), readTime(m[3])}
	return s, !s.Put.IsZero()
}
