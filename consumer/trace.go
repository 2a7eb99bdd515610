package consumer

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/internal/wire"
)

// tracing makes the engine's spans; nil makes none and costs nothing. What a message's headers say of its trace stays
// in its copies and letters either way, as all headers of producers do.
type tracing struct {
	tracer trace.Tracer
	queue  string
}

// maxLinks is how many messages' traces a batch is linked to: the SDK drops further ones by default.
const maxLinks = 128

func newTracing(p trace.TracerProvider, queue string) *tracing {
	if p == nil {
		return nil
	}
	return &tracing{p.Tracer("github.com/rollbackd/rollbackd/consumer"), queue}
}

func (t *tracing) attributes(more ...attribute.KeyValue) trace.SpanStartEventOption {
	return trace.WithAttributes(append(more,
		attribute.String("messaging.system", "rabbitmq"),
		attribute.String("messaging.destination.name", t.queue),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
	)...)
}

// batch begins the span of a batch, with links to the traces of its messages. It is no child of any of them: they are
// of different traces.
func (t *tracing) batch(ctx context.Context, b *batch) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	var links []trace.Link
	for _, it := range b.all {
		if len(links) == maxLinks {
			break
		}
		if of := wire.TraceOf(it.delivery.Headers); of.IsValid() {
			links = append(links, trace.Link{SpanContext: of})
		}
	}
	return t.tracer.Start(ctx, "process "+t.queue, trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(links...), t.attributes(attribute.Int("messaging.batch.message_count", len(b.all))))
}

// ended ends the span of a batch with how its deliveries ended.
func (t *tracing) ended(span trace.Span, b *batch, err error) {
	if t == nil {
		return
	}
	var outcomes [len(outcomeNames)]int
	for _, it := range b.all {
		outcomes[it.outcome]++
	}
	for _, o := range Outcomes() {
		if n := outcomes[o]; n > 0 {
			span.SetAttributes(attribute.Int("rollbackd.outcome."+o.String(), n))
		}
	}
	endSpan(span, err)
}

// message begins the span of a message that is attempted by itself. It is a child of the span that published the
// message, or else of the batch's, and linked to the batch.
func (t *tracing) message(ctx context.Context, m Message) (context.Context, trace.Span) {
	if t == nil {
		return ctx, nil
	}
	batch := trace.SpanContextFromContext(ctx)
	if of := wire.TraceOf(m.Headers); of.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, of)
	}
	return t.tracer.Start(ctx, "process "+t.queue, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithLinks(trace.Link{SpanContext: batch}), t.attributes(
			attribute.String("messaging.message.id", m.MessageID), attribute.String("rollbackd.group", m.Group),
			attribute.String("rollbackd.tag", m.Tag), attribute.String("rollbackd.key", m.Key),
			attribute.Int("rollbackd.attempt", m.Attempt), attribute.Int("rollbackd.replays", m.Replays)))
}

// endSpan ends a span, which is nil without tracing.
func endSpan(span trace.Span, err error) {
	if span == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
