package wire

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given the headers of W3C Trace Context in each type that clients write text as, then they name the span that
// published the message; and what nobody can read names none.
func TestTheSpanThatPublishedIsReadFromTheHeaders(t *testing.T) {
	const (
		parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		trace  = "0af7651916cd43dd8448eb211c80319c"
		span   = "b7ad6b7169203331"
	)
	for name, headers := range map[string]rabbit.Table{
		"text":  {"traceparent": parent, "tracestate": "shop=checkout"},
		"bytes": {"traceparent": []byte(parent), "tracestate": []byte("shop=checkout")},
	} {
		of := TraceOf(headers)
		assert.That(t, of.IsValid() && of.IsRemote() && of.IsSampled() && of.TraceID().String() == trace &&
			of.SpanID().String() == span && of.TraceState().String() == "shop=checkout", "%s: %+v", name, of)
	}
	for name, v := range map[string]any{
		"nothing": nil, "a number": int64(7), "too short": parent[:50], "zeros": "00-" + trace + "-0000000000000000-01",
		"a table":    rabbit.Table{"traceparent": parent},
		"upper case": "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
		"version ff": "ff" + parent[2:], "controls": parent + "\r\nX: y",
	} {
		of := TraceOf(rabbit.Table{"traceparent": v})
		assert.That(t, !of.IsValid(), "%s: %+v", name, of)
	}
}

func TestWhatARelayTellsIsReadFromHeadersAndFromARemark(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 20, 0, 0, 5e6, time.UTC)
	told := rabbit.Table{
		rabbit.HeaderPutAt: at.UnixMilli(), HeaderPublishedAt: at.Add(time.Minute).UnixMilli(),
		rabbit.HeaderSentAt: at.Add(time.Hour).UnixMilli(),
	}
	want := Sending{at, at.Add(time.Minute), at.Add(time.Hour)}
	s := ReadSending(told)
	again, ok := SendingOf(s.String())
	assert.That(t, s == want && again == want && ok, "read %v, and %v, %t from %q", s, again, ok, s)
	for _, h := range []rabbit.Table{nil, {HeaderPublishedAt: int64(1)}, {rabbit.HeaderPutAt: "soon"},
		{rabbit.HeaderPutAt: at.UnixMilli(), rabbit.HeaderSentAt: int64(-1)}} {
		s := ReadSending(h)
		assert.That(t, s == (Sending{}) && s.String() == "", "%v tells %v", h, s)
	}
	for _, remark := range []string{"", "put into the outbox soon, due 1, sent 2", "the shelf is locked"} {
		s, ok := SendingOf(remark)
		assert.That(t, !ok, "%q tells %v", remark, s)
	}
}
