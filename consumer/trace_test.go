package consumer

import (
	"context"
	"fmt"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// tracedBatch is one of n messages that say which spans published them.
func tracedBatch(n int) *batch {
	b := &batch{}
	for i := range n {
		it := &item{fate: fate{outcome: Applied}}
		it.delivery.Headers = rabbit.Table{"traceparent": fmt.Sprintf("00-%032x-%016x-01", i+1, i+1)}
		b.all = append(b.all, it)
	}
	return b
}

// Given no TracerProvider, then spans cost no allocation, whatever the messages say of their traces.
func TestWithoutTracingNothingIsAllocated(t *testing.T) {
	var off *tracing
	b, ctx := tracedBatch(100), context.Background()
	m := Message{Headers: b.all[0].delivery.Headers}
	assert.Is(t, testing.AllocsPerRun(100, func() { spansOf(ctx, off, b, m) }), 0, "allocations")
	on := newTracing(noop.NewTracerProvider(), "q")
	assert.AtLeast(t, testing.AllocsPerRun(100, func() { spansOf(ctx, on, b, m) }), 100,
		"allocations with tracing: what is measured is not what happens")
}

// spansOf is what a lane does for a batch of which one message is attempted alone.
func spansOf(ctx context.Context, t *tracing, b *batch, m Message) {
	ctx, span := t.batch(ctx, b)
	_, alone := t.message(ctx, m)
	endSpan(alone, nil)
	t.ended(span, b, nil)
}
