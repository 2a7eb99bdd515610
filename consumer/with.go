package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Middleware makes a Handler that calls next, within its transaction, and does something before, behind or around that.
// It hands on the messages that it was given, once, with the context that it was given or one made of that, or does not
// call next: another call in the same transaction is refused. Should it return before next has, that is waited for.
// What it returns is read as the handler's own error: nil means that all of its messages are applied, whether or not
// next was called.
type Middleware func(next Handler) Handler

// With is h with middleware around it; the first is the outermost. It goes around each call for one message of a
// handler made by [Each], [JSON] or [Calls], where tx is nil; around each handler of a [Mux]; and around the calls for
// batches of any other Handler. Who is blamed for what stays as it is: an error or a panic of middleware is that of the
// message, or of the call, that it was given. A Validator is asked as before, without middleware.
func With(h Handler, all ...Middleware) Handler {
	for _, mw := range slices.Backward(all) {
		h = around(h, mw)
	}
	return h
}

func around(h Handler, mw Middleware) Handler {
	if inside, ok := h.(interface{ around(mw Middleware) Handler }); ok {
		return inside.around(mw)
	}
	next := mw(HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
		of, _ := ctx.Value(givenKey{}).(*given)
		if of == nil || len(msgs) == 0 || len(msgs) != len(of.msgs) || &msgs[0] != &of.msgs[0] {
			return errOtherMessages
		}
		return of.once(tx, func() error { return h.Handle(ctx, tx, msgs) })
	}))
	outer := HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
		ctx, given := withGiven(ctx, msgs)
		defer given.end()
		return next.Handle(ctx, tx, msgs)
	})
	if v, ok := h.(Validator); ok {
		return validated{outer, v}
	}
	return outer
}

// errOtherMessages is the error of a call that would let the engine blame, or apply, the wrong messages, or that nobody
// could wait for.
var errOtherMessages = errors.New("middleware must hand on the messages that it was given, or none, with the context " +
	"that it was given, or one made of that")

// Recover is middleware that makes a panic behind it the error of the call, with its stack: so middleware around it
// sees an error, and a batch need not be halved to find the message. The engine itself recovers outside of all.
func Recover(next Handler) Handler {
	return HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = runner.Recovered(p)
			}
		}()
		return next.Handle(ctx, tx, msgs)
	})
}

// Logged is middleware that logs each call behind it: as debug, or as a warning when it returns an error. What it tells
// of may be rolled back yet, and then happens again.
func Logged(log *slog.Logger) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
			began := time.Now()
			err := next.Handle(ctx, tx, msgs)
			level, attrs := slog.LevelDebug, []slog.Attr{
				slog.Any("message", msgs[0].Identity), slog.Int("messages", len(msgs)), slog.Int("attempt", msgs[0].Attempt),
				slog.Duration("took", time.Since(began)),
			}
			if err != nil {
				level, attrs = slog.LevelWarn, append(attrs, slog.Any("err", err))
			}
			log.LogAttrs(ctx, level, "handled", attrs...)
			return err
		})
	}
}

// Traced is middleware with a span of OpenTelemetry around each call behind it, linked to the spans that published its
// messages; the handler's context holds it. It is a child of the engine's span where Config.TracerProvider is set.
// [Recover] belongs behind it.
func Traced(p trace.TracerProvider) Middleware {
	tracer := p.Tracer("github.com/rollbackd/rollbackd/consumer")
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []Message) error {
			var links []trace.Link
			for _, m := range msgs[:min(len(msgs), maxLinks)] {
				if of := wire.TraceOf(m.Headers); of.IsValid() {
					links = append(links, trace.Link{SpanContext: of})
				}
			}
			ctx, span := tracer.Start(ctx, "handle "+msgs[0].Tag, trace.WithLinks(links...), trace.WithAttributes(
				attribute.String("rollbackd.tag", msgs[0].Tag), attribute.String("rollbackd.key", msgs[0].Key),
				attribute.Int("messaging.batch.message_count", len(msgs))))
			err := next.Handle(ctx, tx, msgs)
			endSpan(span, err)
			return err
		})
	}
}
