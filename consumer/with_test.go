package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// witness is middleware that notes each call that it sees: its name, and how many messages.
type witness struct {
	mu   sync.Mutex
	seen []string // guarded by mu
}

func (o *witness) called(name string) consumer.Middleware {
	return func(next consumer.Handler) consumer.Handler {
		return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			o.mu.Lock()
			o.seen = append(o.seen, fmt.Sprintf("%s: %d", name, len(msgs)))
			o.mu.Unlock()
			return next.Handle(ctx, tx, msgs)
		})
	}
}

// Given two middlewares around handlers of each kind, when three messages come in one batch, then the outer one is
// called before the inner one, for each message by itself where the handler is for one, and else once for all, in the
// handler's transaction where there is one; and bodies are decoded as without them.
func TestMiddlewareSeesWhatItsHandlerIsCalledWith(t *testing.T) {
	one := []string{"outer: 1", "inner: 1", "outer: 1", "inner: 1", "outer: 1", "inner: 1"}
	all := []string{"outer: 3", "inner: 3"}
	type kind struct {
		handler func(w *world) consumer.Handler
		want    []string
	}
	of := func(h consumer.Handler) func(*world) consumer.Handler {
		return func(*world) consumer.Handler { return h }
	}
	each(t, map[string]kind{
		"Each":      {of(by(false, effectOfKey)), one},
		"JSON":      {of(consumer.JSON(fillOne)), one},
		"a batch":   {of(by(true, effectOfKey)), all},
		"JSONBatch": {of(consumer.JSONBatch(fillAll)), all},
		"Mux":       {of(consumer.Mux{tag: consumer.JSONBatch(fillAll)}), all},
		"a Validator": {of(validating{by(true, effectOfKey), func(m *consumer.Message) error { return nil }}),
			all},
		"Calls": {func(w *world) consumer.Handler {
			return consumer.Calls(func(ctx context.Context, m consumer.Message) error {
				return insert(w.gorm.WithContext(ctx), m.Key)
			}, consumer.CallOptions{Concurrency: 1})
		}, one},
	}, func(t *testing.T, w *world, k kind) {
		var o witness
		w.handler = consumer.With(k.handler(w), o.called("outer"), o.called("inner"))
		w.oneBatch(3)
		w.publish(`{"name":"a","places":1}`, keys("order", 3)...)
		w.start()
		w.ended(dedup.Success, keys("order", 3)...)
		w.quiet()
		o.mu.Lock()
		defer o.mu.Unlock()
		assert.Equal(t, o.seen, k.want, "the calls")
		is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 3)
	})
}

// Given middleware around the handlers of a batch that does each thing which could have the wrong one pay, then the
// guilty message has its attempts and its letter, and the others are applied, in their first attempt.
func TestNoMiddlewareChangesWhoIsCharged(t *testing.T) {
	boom := errors.New("boom")
	guilty := func(msgs []consumer.Message) bool {
		return slices.ContainsFunc(msgs, func(m consumer.Message) bool { return m.Key == "bad" })
	}
	around := func(do func(next func() error, tx *gorm.DB, msgs []consumer.Message) error) consumer.Middleware {
		return func(next consumer.Handler) consumer.Handler {
			return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				return do(func() error { return next.Handle(ctx, tx, msgs) }, tx, msgs)
			})
		}
	}
	bad := func(_ *gorm.DB, m consumer.Message) error {
		if m.Key == "bad" {
			return boom
		}
		return nil
	}
	blamingBad := consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		return errors.Join(insertAll(tx, msgs), blaming(msgs, func(m consumer.Message) error { return bad(tx, m) }))
	})
	type way struct {
		handler consumer.Handler
		mw      consumer.Middleware
		says    string
	}
	each(t, map[string]way{
		"an error of its own, one": {by(false, effectOfKey),
			around(func(next func() error, _ *gorm.DB, msgs []consumer.Message) error {
				if err := next(); err != nil || !guilty(msgs) {
					return err
				}
				return boom
			}), "boom"},
		"an error of its own, a batch": {by(true, effectOfKey),
			around(func(next func() error, _ *gorm.DB, msgs []consumer.Message) error {
				if err := next(); err != nil || !guilty(msgs) {
					return err
				}
				return boom
			}), "boom"},
		"a panic of its own, recovered": {by(false, effectOfKey),
			around(func(next func() error, _ *gorm.DB, msgs []consumer.Message) error {
				if guilty(msgs) {
					panic(boom)
				}
				return next()
			}), "handler panicked: boom"},
		"a panic behind it, one": {by(false, then(effectOfKey, panicsFor("bad"))), consumer.Recover, "panicked: bad"},
		"a panic behind it, a batch": {by(true, then(effectOfKey, panicsFor("bad"))), consumer.Recover,
			"panicked: bad"},
		"blame that it wraps": {blamingBad,
			around(func(next func() error, _ *gorm.DB, _ []consumer.Message) error {
				if err := next(); err != nil {
					return fmt.Errorf("middleware: %w", err)
				}
				return nil
			}), "boom"},
		"blame of one, by itself": {by(false, effectOfKey),
			around(func(next func() error, _ *gorm.DB, msgs []consumer.Message) error {
				if guilty(msgs) {
					return consumer.Blame(consumer.BlamedMessage{Index: 0, Err: boom})
				}
				return next()
			}), "boom"},
		"a statement's error that it drops": {by(false, func(tx *gorm.DB, m consumer.Message) error {
			if m.Key == "bad" {
				return insert(tx, strings.Repeat("x", 300))
			}
			return effectOfKey(tx, m)
		}), around(func(next func() error, _ *gorm.DB, _ []consumer.Message) error { _ = next(); return nil }), "too long"},
	}, func(t *testing.T, w *world, tc way) {
		w.handler = consumer.With(tc.handler, consumer.Recover, tc.mw)
		good := keys("good", 20)
		w.oneBatch(21)
		w.startWith(slices.Insert(slices.Clone(good), 10, "bad")...)
		w.ended(dedup.Dead, "bad")
		w.applied(good...)
		w.quiet()
		w.wantRow("bad", wanted{Attempts: 3, Reason: dedup.ReasonExhausted, Says: tc.says})
		is(w, "rows of success with more than one attempt",
			w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND consumer_times <> 1"), 0)
	})
}

func panicsFor(key string) does {
	return func(_ *gorm.DB, m consumer.Message) error {
		if m.Key == key {
			panic(key)
		}
		return nil
	}
}

// Given middleware that hands on other messages than it was given, then whom the handler would blame, or apply, nobody
// knows: each of its calls is refused.
func TestMiddlewareMustHandOnItsMessages(t *testing.T) {
	type part func(msgs []consumer.Message) []consumer.Message
	fewer := part(func(msgs []consumer.Message) []consumer.Message { return msgs[1:] })
	others := part(func(msgs []consumer.Message) []consumer.Message { return slices.Clone(msgs) })
	more := part(func(msgs []consumer.Message) []consumer.Message { return append(msgs, msgs[0]) })
	type way struct {
		handler consumer.Handler
		part    part
	}
	each(t, map[string]way{
		"a batch without its first": {by(true, effectOfKey), fewer},
		"others like those given":   {by(true, effectOfKey), others},
		"no message instead of one": {by(false, effectOfKey), fewer},
		"two instead of one":        {by(false, effectOfKey), more},
	}, func(t *testing.T, w *world, tc way) {
		w.handler = consumer.With(tc.handler, func(next consumer.Handler) consumer.Handler {
			return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				return next.Handle(ctx, tx, tc.part(msgs))
			})
		})
		all := keys("order", 4)
		w.oneBatch(4)
		w.startWith(all...)
		w.ended(dedup.Dead, all...)
		w.wantRow(all[0], wanted{Attempts: 3, Says: "middleware must hand on the messages that it was given"})
		is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 0)
	})
}

// Given middleware that calls its handler again when that has failed, or that calls it twice in any case, then what the
// first call has written never becomes an effect beside that of the second: the message fails, with the reason.
func TestMiddlewareMayCallItsHandlerOnce(t *testing.T) {
	twice := func(always bool) consumer.Middleware {
		return func(next consumer.Handler) consumer.Handler {
			return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				if err := next.Handle(ctx, tx, msgs); err == nil && !always {
					return nil
				}
				return next.Handle(ctx, tx, msgs)
			})
		}
	}
	type way struct{ whole, always bool }
	each(t, named(way{}, way{whole: true}, way{always: true}, way{true, true}), func(t *testing.T, w *world, tc way) {
		var mu sync.Mutex
		begun := map[string]bool{}
		w.handler = consumer.With(by(tc.whole, func(tx *gorm.DB, m consumer.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if err := insert(tx, m.Key); err != nil || begun[m.Key] || tc.always {
				return err
			}
			begun[m.Key] = true
			return errors.New("fails once")
		}), twice(tc.always), consumer.Recover)
		all := keys("order", 4)
		w.oneBatch(4)
		w.startWith(all...)
		if tc.always {
			w.ended(dedup.Dead, all...)
			w.wantRow(all[0], wanted{Attempts: 3, Says: "middleware must call next once at most"})
			is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 0)
			return
		}
		w.ended(dedup.Success, all...)
		w.quiet()
		w.applied(all...)
	})
}

// Given middleware that calls its handler with a context of its own, by which nobody could know the call, then the
// handler is not called, and the message fails with the reason.
func TestMiddlewareMustHandItsContextOn(t *testing.T) {
	each(t, named(false, true), func(t *testing.T, w *world, whole bool) {
		w.handler = consumer.With(by(whole, effectOfKey), func(next consumer.Handler) consumer.Handler {
			return consumer.HandlerFunc(func(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
				return next.Handle(context.Background(), tx, msgs)
			})
		})
		w.startWith("order")
		w.ended(dedup.Dead, "order")
		w.wantRow("order", wanted{Attempts: 3, Says: "with the context that it was given"})
		is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 0)
	})
}

// Given middleware that gives its handler up and returns an error, while that goes on in a goroutine, then what the
// handler still writes is not committed with the others of its batch: the message has failed, and has its effect once.
func TestAHandlerThatMiddlewareHasGivenUpWritesNothingMore(t *testing.T) {
	each(t, named(false, true), func(t *testing.T, w *world, whole bool) {
		all := keys("order", 3)
		var begun, others, left sync.Once
		next, gone := make(chan struct{}), make(chan struct{}) // another message's turn has come; it was given up
		giveUp := func(h consumer.Handler) consumer.Handler {
			return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) (err error) {
				first := false
				if msgs[0].Key == all[0] {
					left.Do(func() { first = true })
				}
				if !first {
					return h.Handle(ctx, tx, msgs)
				}
				go func() { _ = h.Handle(ctx, tx, msgs) }()
				<-gone
				return errors.New("it takes too long")
			})
		}
		w.handler = consumer.With(by(whole, func(tx *gorm.DB, m consumer.Message) error {
			slow := false
			if m.Key == all[0] {
				begun.Do(func() { slow = true })
			} else {
				others.Do(func() { close(next) })
			}
			if slow {
				close(gone)
				select {
				case <-next:
				case <-time.After(200 * time.Millisecond): // nobody's turn comes before this is over
				}
			}
			return insert(tx, m.Key)
		}), giveUp)
		w.oneBatch(3)
		w.startWith(all...)
		w.ended(dedup.Success, all...)
		w.quiet()
		w.applied(all...)
	})
}

// Given a handler with a span and a log line around it, when one message of two fails for good, then there is a span
// for each, linked to what published it, which says how it ended, and the failure is a warning.
func TestCallsAreTracedAndLogged(t *testing.T) {
	w := newWorld(t)
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	w.hopeless("bad")
	log := slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.handler = consumer.With(by(false, func(tx *gorm.DB, m consumer.Message) error {
		return errors.Join(insert(tx, m.Key), w.judge(m))
	}), consumer.Logged(log), consumer.Traced(provider), consumer.Recover)
	const published = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, key := range []string{"good", "bad"} {
		w.publishMessages(rabbit.Message{MessageID: key, Body: []byte("{}"), DeliveryMode: rabbit.Persistent,
			Headers: rabbit.Table{"traceparent": published}})
	}
	w.start()
	w.ended(dedup.Success, "good")
	w.ended(dedup.Dead, "bad")
	ends := map[string]codes.Code{}
	for _, span := range spans.GetSpans() {
		for _, a := range span.Attributes {
			if a.Key == "rollbackd.key" {
				ends[a.Value.AsString()] = span.Status.Code
			}
		}
		if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" ||
			span.Name != "handle "+tag {
			t.Errorf("the span %s has the links %+v", span.Name, span.Links)
		}
	}
	if ends["good"] != codes.Unset || ends["bad"] != codes.Error || len(ends) != 2 {
		t.Errorf("the spans ended as %v", ends)
	}
	w.logged("level=DEBUG msg=handled message.group=test-group message.tag=stock.rollback message.key=good messages=1")
	w.logged("level=WARN msg=handled message.group=test-group message.tag=stock.rollback message.key=bad messages=1")
}
