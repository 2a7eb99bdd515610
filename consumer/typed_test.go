package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/rollbackd/rollbackd/internal/test/poll"
)

// shelf is a body; one without places is refused.
type shelf struct {
	Name   string `json:"name"`
	Places int    `json:"places"`
}

// Validate is asked by typed handlers.
func (s *shelf) Validate() error {
	if s.Places < 1 {
		return fmt.Errorf("a shelf of %d places", s.Places)
	}
	return nil
}

// fill writes the effect of a message, as its body has it.
func fill(tx *gorm.DB, s shelf) error {
	return tx.Exec("INSERT INTO effect (k, body) VALUES (?, '')", fmt.Sprintf("%s of %d", s.Name, s.Places)).Error
}

func fillOne(_ context.Context, tx *gorm.DB, s shelf, _ consumer.Message) error { return fill(tx, s) }

func fillAll(_ context.Context, tx *gorm.DB, all []shelf, _ []consumer.Message) error {
	for _, s := range all {
		if err := fill(tx, s); err != nil {
			return err
		}
	}
	return nil
}

// Given bodies that nobody can read, or of which two readers make two things, and some that their type refuses, among
// twenty good ones, with fields that the type does not know, then each of the first is a letter by itself and at once,
// with the reason that it has, and the good ones are applied as decoded.
func TestATypedHandlerGetsWhatItsBodySaysAndNothingElse(t *testing.T) {
	bad := map[string]string{
		"cut-off": `{"name":"bad"`, "with more behind": `{"name":"bad","places":1} {}`, "empty": ``, "null": ` null `,
		"of another type": `{"name":"bad","places":"1"}`, "a list": `[]`, "a field twice": `{"places":2,"places":1}`,
		"no UTF-8": "{\"name\":\"\xff\",\"places\":1}", "half a pair": `{"name":"\ud800","places":1}`,
		"without places": `{"name":"bad"}`, "with less than none": `{"name":"bad","places":-1}`,
	}
	refused := []string{"with less than none", "without places"}
	each(t, map[string]consumer.Handler{
		"one": consumer.JSON(fillOne), "batch": consumer.JSONBatch(fillAll),
		"one, by its address": consumer.JSON(func(_ context.Context, tx *gorm.DB, s *shelf, _ consumer.Message) error {
			return fill(tx, *s)
		}),
		"behind a handler that hides it":         consumer.HandlerFunc(consumer.JSON(fillOne).Handle),
		"a batch behind a handler that hides it": consumer.HandlerFunc(consumer.JSONBatch(fillAll).Handle),
		"in a Mux":                               consumer.Mux{tag: consumer.JSON(fillOne)},
	}, func(t *testing.T, w *world, h consumer.Handler) {
		w.handler = h
		var msgs []rabbit.Message
		good, want := keys("good", 20), map[string]int{}
		for i, key := range good {
			msgs = append(msgs, message(key, fmt.Sprintf(`{"name":%q,"places":%d,"colour":{"name":"red"}}`, key, i+1)))
			want[fmt.Sprintf("%s of %d", key, i+1)] = 1
		}
		var letters []string
		for key, body := range bad {
			msgs = append(msgs, message(key, body))
			letters = append(letters, key)
		}
		w.oneBatch(len(msgs))
		w.publishMessages(msgs...)
		w.start()
		w.ended(dedup.Success, good...)
		w.ended(dedup.Dead, letters...)
		w.end(map[string]int{"applied": len(good), "dead_lettered": len(letters)})
		for _, key := range letters {
			want := dedup.ReasonMalformed
			if slices.Contains(refused, key) {
				want = dedup.ReasonPermanent
			}
			w.wantRow(key, wanted{Reason: want})
		}
		w.wantRow("without places", wanted{Says: "a shelf of 0 places"})
		w.want("effects", w.effects(), want)
	})
}

// ofTag are messages with a tag of their own, whose keys begin with it.
func ofTag(tag string, n int) (all []rabbit.Message) {
	for _, key := range keys(tag, n) {
		m := message(key, "{}")
		m.Type = tag
		all = append(all, m)
	}
	return all
}

// endedAs waits until each of these messages has a row of its tag in this status.
func (w *world) endedAs(status dedup.Status, msgs ...rabbit.Message) {
	w.t.Helper()
	for _, m := range msgs {
		w.eventually(m.MessageID+" is "+status.String(), func() bool {
			return w.rowOf(dedup.Identity{Group: group, Tag: m.Type, Key: m.MessageID}).Status == status
		})
	}
}

// Given handlers of four tags and one for all others, of which one blames a message, one leaves one out, one drops the
// error of a statement for one and one fails without blame, when messages of all tags come in one batch, then each is
// applied by the handler of its tag, once, but for the four.
func TestAMuxHandsEachMessageToTheHandlerOfItsTag(t *testing.T) {
	w := newWorld(t)
	boom := errors.New("boom")
	bad := func(m consumer.Message) error {
		if strings.HasSuffix(m.Key, "-0003") {
			return boom
		}
		return nil
	}
	as := func(name string, guilty func(consumer.Message) error) does {
		return func(tx *gorm.DB, m consumer.Message) error { return errors.Join(insert(tx, name+" "+m.Key), guilty(m)) }
	}
	well := func(consumer.Message) error { return nil }
	w.handler = consumer.Mux{
		"blames": by(false, as("blames", bad)),
		"leaves": handling(func(tx *gorm.DB, msgs []consumer.Message) error { return excepting(tx, msgs, bad) }),
		"drops": by(true, func(tx *gorm.DB, m consumer.Message) error {
			if bad(m) != nil {
				_ = insert(tx, strings.Repeat("x", 300)) // it does not fit
			}
			return as("drops", well)(tx, m)
		}),
		"fails":            by(true, as("fails", bad)),
		consumer.OtherTags: by(true, as("other", well)),
	}
	var all, failed []rabbit.Message
	want := map[string]int{}
	for tag, prefix := range map[string]string{ // of the effects
		"blames": "blames ", "leaves": "", "drops": "drops ", "fails": "fails ", "new": "other ", "newer": "other ",
	} {
		of := ofTag(tag, 6)
		all = append(all, of...)
		if prefix != "other " {
			failed = append(failed, of[3])
			of = slices.Delete(slices.Clone(of), 3, 4)
		}
		for _, key := range keysOf(of) {
			want[prefix+key] = 1
		}
	}
	for i := range all { // tags alternate
		j := (i * 7) % len(all)
		all[i], all[j] = all[j], all[i]
	}
	w.oneBatch(len(all))
	w.publishMessages(all...)
	w.start()
	w.endedAs(dedup.Dead, failed...)
	w.quiet()
	w.want("effects", w.effects(), want)
	is(w, "letters", w.dead(), len(failed))
	is(w, "rows of success with more than one attempt",
		w.number("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1 AND consumer_times <> 1"), 0)
}

// Given a Mux without a handler for a tag, then its messages have failed attempts that name the tags which are known,
// the others are applied, and the brake sees it; such a message is never unidentified.
func TestAnUnknownTagIsAFailedAttemptThatNamesThoseKnown(t *testing.T) {
	w := newWorld(t)
	w.handler = consumer.Mux{"shelf.filled": whole(effectOfKey), "shelf.emptied": whole(effectOfKey)}
	unknown := ofTag("shelf.moved", 3)
	good := slices.Concat(ofTag("shelf.filled", 5), ofTag("shelf.emptied", 5))
	w.oneBatch(13)
	w.publishMessages(slices.Concat(good[:5], unknown, good[5:])...)
	w.start()
	w.endedAs(dedup.Success, good...)
	w.endedAs(dedup.Dead, unknown...)
	w.end(map[string]int{"applied": 10, "retried": 6, "dead_lettered": 3})
	row := w.rowOf(dedup.Identity{Group: group, Tag: "shelf.moved", Key: unknown[0].MessageID})
	is(w, "the reason", row.Reason, dedup.ReasonExhausted)
	is(w, "the remark", row.Remark, `no handler for the tag "shelf.moved", only for ["shelf.emptied" "shelf.filled"]`)
}

func effectOfKey(tx *gorm.DB, m consumer.Message) error { return insert(tx, m.Key) }

// around is middleware that does this.
func around(do func(context.Context, consumer.Handler, *gorm.DB, []consumer.Message) error) consumer.Middleware {
	return func(next consumer.Handler) consumer.Handler {
		return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
			return do(ctx, next, tx, msgs)
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
		handler consumer.Handler // none: Calls
		want    []string
	}
	each(t, map[string]kind{
		"Each":        {by(false, effectOfKey), one},
		"JSON":        {consumer.JSON(fillOne), one},
		"a batch":     {by(true, effectOfKey), all},
		"JSONBatch":   {consumer.JSONBatch(fillAll), all},
		"Mux":         {consumer.Mux{tag: consumer.JSONBatch(fillAll)}, all},
		"a Validator": {validating{by(true, effectOfKey), func(*consumer.Message) error { return nil }}, all},
		"Calls":       {nil, one},
	}, func(t *testing.T, w *world, k kind) {
		if k.handler == nil {
			k.handler = consumer.Calls(func(ctx context.Context, m consumer.Message) error {
				return insert(w.gorm.WithContext(ctx), m.Key)
			}, consumer.CallOptions{Concurrency: 1})
		}
		var mu sync.Mutex
		var seen []string // guarded by mu
		called := func(name string) consumer.Middleware {
			return around(func(ctx context.Context, next consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error {
				mu.Lock()
				seen = append(seen, fmt.Sprintf("%s: %d", name, len(msgs)))
				mu.Unlock()
				return next.Handle(ctx, tx, msgs)
			})
		}
		w.handler = consumer.With(k.handler, called("outer"), called("inner"))
		w.oneBatch(3)
		w.publish(`{"name":"a","places":1}`, keys("order", 3)...)
		w.start()
		w.ended(dedup.Success, keys("order", 3)...)
		w.quiet()
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, seen, k.want, "the calls")
		is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 3)
	})
}

// Given middleware that hands on other messages than it was given, or a context by which nobody could know the call, or
// calls its handler twice, whose first call has written already, then whom the handler would blame, or apply, nobody
// knows: each of its calls is refused, with the reason, and has no effect.
func TestMiddlewareMustHandOnWhatItIsGivenOnce(t *testing.T) {
	type call func(ctx context.Context, next consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error
	with := func(change func(msgs []consumer.Message) []consumer.Message) call {
		return func(ctx context.Context, next consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error {
			return next.Handle(ctx, tx, change(msgs))
		}
	}
	fewer := with(func(msgs []consumer.Message) []consumer.Message { return msgs[1:] })
	twice := call(func(ctx context.Context, next consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error {
		return errors.Join(next.Handle(ctx, tx, msgs), next.Handle(ctx, tx, msgs))
	})
	alone := call(func(_ context.Context, next consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error {
		return next.Handle(context.Background(), tx, msgs)
	})
	const given = "middleware must hand on the messages that it was given"
	type way struct {
		whole bool
		call  call
		says  string
	}
	each(t, map[string]way{
		"a batch without its first": {true, fewer, given},
		"others like those given":   {true, with(slices.Clone[[]consumer.Message]), given},
		"no message instead of one": {false, fewer, given},
		"two instead of one": {false, with(func(m []consumer.Message) []consumer.Message {
			return append(m, m[0])
		}), given},
		"a batch in another context":   {true, alone, "with the context that it was given"},
		"a message in another context": {false, alone, "with the context that it was given"},
		"a batch, and once more":       {true, twice, "middleware must call next once at most"},
		"a message, and once more":     {false, twice, "middleware must call next once at most"},
	}, func(t *testing.T, w *world, tc way) {
		w.handler = consumer.With(by(tc.whole, effectOfKey), around(tc.call), consumer.Recover)
		all := keys("order", 4)
		w.oneBatch(4)
		w.startWith(all...)
		w.ended(dedup.Dead, all...)
		w.wantRow(all[0], wanted{Attempts: 3, Says: tc.says})
		is(w, "effects", w.number("SELECT COUNT(*) FROM effect"), 0)
	})
}

// Given middleware that gives its handler up and returns an error, while that goes on in a goroutine, then what the
// handler still writes is not committed with the others of its batch: the message has failed, and has its effect once.
func TestAHandlerThatMiddlewareHasGivenUpWritesNothingMore(t *testing.T) {
	each(t, named(false, true), func(t *testing.T, w *world, whole bool) {
		all := keys("order", 3)
		var begun, left atomic.Bool
		next, gone := make(chan struct{}), make(chan struct{}) // another message's turn has come; it was given up
		others := sync.OnceFunc(func() { close(next) })
		giveUp := around(func(ctx context.Context, h consumer.Handler, tx *gorm.DB, msgs []consumer.Message) error {
			if msgs[0].Key != all[0] || left.Swap(true) {
				return h.Handle(ctx, tx, msgs)
			}
			go func() { _ = h.Handle(ctx, tx, msgs) }()
			<-gone
			return errors.New("it takes too long")
		})
		w.handler = consumer.With(by(whole, func(tx *gorm.DB, m consumer.Message) error {
			if m.Key != all[0] {
				others()
			} else if !begun.Swap(true) {
				close(gone)
				poll.Within(200*time.Millisecond, func() bool { return poll.IsClosed(next) }) // nobody's comes before this is over
			}
			return insert(tx, m.Key)
		}), giveUp)
		w.oneBatch(3)
		w.startWith(all...)
		w.quiet()
		w.applied(all...)
	})
}

// Given a handler with a span and a log line around it, when it panics for one message of two, then there is a span for
// each call, linked to what published it, which says how it ended, and the failure is a warning.
func TestCallsAreTracedAndLogged(t *testing.T) {
	w := newWorld(t)
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	w.cfg.MaxAttempts = 1
	log := slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	breaks := by(false, func(tx *gorm.DB, m consumer.Message) error {
		if m.Key == "bad" {
			panic("bad")
		}
		return effectOfKey(tx, m)
	})
	w.handler = consumer.With(breaks, consumer.Logged(log), consumer.Traced(provider), consumer.Recover)
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
		assert.That(t, len(span.Links) == 1 && span.Links[0].SpanContext.SpanID().String() == "b7ad6b7169203331" &&
			span.Name == "handle "+tag, "the span %s has the links %+v", span.Name, span.Links)
	}
	assert.That(t, ends["good"] == codes.Unset && ends["bad"] == codes.Error && len(ends) == 2, "the spans ended as %v",
		ends)
	w.logged("level=DEBUG msg=handled message.group=test-group message.tag=stock.rollback message.key=good messages=1")
	w.logged("level=WARN msg=handled message.group=test-group message.tag=stock.rollback message.key=bad messages=1")
}
