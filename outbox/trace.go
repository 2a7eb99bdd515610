package outbox

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/propagation"
)

// withTrace adds the trace of ctx to headers, as W3C Trace Context, unless they have one.
func withTrace(ctx context.Context, headers map[string]any) map[string]any {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if _, ok := headers["traceparent"]; ok || len(carrier) == 0 {
		return headers
	}
	headers = maps.Clone(headers)
	if headers == nil {
		headers = map[string]any{}
	}
	for name, v := range carrier {
		headers[name] = v
	}
	return headers
}
