package wire

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// TraceOf is the span that published a message, as its headers traceparent and tracestate say (W3C Trace Context). It
// is not valid when they say nothing, or nothing that can be read.
func TraceOf(headers rabbit.Table) trace.SpanContext {
	if _, says := headers["traceparent"]; !says {
		return trace.SpanContext{}
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), traceHeaders(headers))
	return trace.SpanContextFromContext(ctx)
}

// traceHeaders are headers as text; clients write text as either type.
type traceHeaders rabbit.Table

// Get is the text of a header; empty for what is none.
func (h traceHeaders) Get(name string) string {
	switch v := h[name].(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}

// Set is never asked for: a message keeps the headers that it came with.
func (h traceHeaders) Set(string, string) {}

// Keys are the names of all headers.
func (h traceHeaders) Keys() (names []string) {
	for name := range h {
		names = append(names, name)
	}
	return names
}
