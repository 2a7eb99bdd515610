package operator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/operator"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

func (w *world) outbox() *world {
	w.T.Helper()
	g, _ := w.Open(stack.ForMigrations(w.T, w.DSN), dedup.OpenOptions{})
	w.Must(outbox.Migrate(w.T.Context(), g))
	return w
}

// story is what is told of a message, step by step.
func (w *world) story(key string) (e operator.Explanation, steps []string) {
	w.T.Helper()
	told := w.ofKey(w.lookup(), key)
	require.Is(w.T, len(told.Messages), 1, "messages have the key %s", key)
	e = operator.Explain(told.Messages[0], operator.Names{Program: "consumer", MaxAttempts: 3})
	for _, s := range e.Story {
		steps = append(steps, s.What)
	}
	return e, steps
}

// Given a message that is put in a span, to be sent later; when a relay sends it and an engine applies it, then its
// story begins at the outbox and ends with the effect, also once nothing of it is left there, and the batch is linked
// to the span.
func TestTheStoryOfAMessageBeginsAtTheOutbox(t *testing.T) {
	w := newWorld(t).outbox()
	spans := tracetest.NewInMemoryExporter()
	w.consumes(nil, func(c *consumer.Config) { c.TracerProvider = sdk.NewTracerProvider(sdk.WithSyncer(spans)) })
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2},
		TraceFlags: trace.FlagsSampled})
	tx := require.Get(w.Pool.BeginTx(t.Context(), nil))(t)
	w.Must(outbox.Put(trace.ContextWithSpanContext(t.Context(), span), tx,
		outbox.Message{Tag: tag, Key: "A", Body: []byte("{}"), Delay: 100 * time.Millisecond}), tx.Commit())
	e, steps := w.story("A")
	want := []string{"put into the outbox", "due to be sent"}
	assert.That(t, slices.Equal(steps, want) && e.Body == "{}" && strings.Contains(e.Means, "outbox"),
		"before it is sent: %q, %s", steps, e.Means)
	r := require.Get(relay.New(relay.Config{DB: w.Pool, AMQPURLs: []string{w.Broker.URL}, Exchange: w.Broker.Name("stock"),
		RoutingKey: tag}))(w.T)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	w.wantApplied(1)
	w.Eventually("its row leaves the outbox", func() (string, bool) {
		return "", w.Number("SELECT COUNT(*) FROM rollbackd_outbox") == 0
	})
	stop()
	w.Must(<-ended)
	e, steps = w.story("A")
	want = append(want, "sent by a relay", "delivered", "absent → success, in a batch")
	assert.That(t, slices.Equal(steps, want) && e.Remark == "", "applied: %q, remark %q", steps, e.Remark)
	linked := func(s tracetest.SpanStub) bool {
		return slices.ContainsFunc(s.Links, func(l sdk.Link) bool { return l.SpanContext.TraceID() == span.TraceID() })
	}
	w.Eventually("a span is linked to the one in which the message was put", func() (string, bool) { // it ends after that
		return fmt.Sprint(spans.GetSpans()), slices.ContainsFunc(spans.GetSpans(), linked)
	})
}

// park makes the messages with these keys parked since then.
func (w *world) park(ago time.Duration, keys ...string) {
	w.T.Helper()
	for _, key := range keys {
		w.Exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, owner, next_at, reason, failed_at, parked_at) SELECT "+
			"?, ?, '{}', 'x', '9999-12-31', 'nobody', at, at FROM (SELECT UTC_TIMESTAMP(6) - INTERVAL ? SECOND AS at) t",
			tag, key, int(ago.Seconds()))
	}
}

// Given parked messages, when persons ask the fleet to retry and to drop some, then a daemon does it, and the record
// says who, why, what came of it, and what was dropped. Maintenance deletes what is parked for longer than the
// retention, on record too; where there is nothing of it, and where there is no outbox, it says nothing.
func TestWhatIsDoneToTheOutboxIsOnRecord(t *testing.T) {
	w := newWorld(t)
	desk := w.newDesk(func(o *operator.Options) { o.Retention = time.Hour })
	w.Must(desk.PruneOutbox(t.Context()))
	w.outbox().park(time.Minute, "A", "B", "C")
	w.Must(desk.PruneOutbox(t.Context()))
	assert.Is(t, len(w.acts(operator.ActFilter{})), 0, "nothing was to be deleted: acts")
	w.daemon()
	ask := func(r operator.OutboxRequest, outcome string) operator.Act {
		t.Helper()
		a := w.ends(w.ask(anna, r.Task()).ID)
		w.wantEnded(a, operator.Done, outcome)
		assert.Is(t, fmt.Sprint(a.Why, " by ", a.Actor, a.Sweeping), r.Why+" by annafalse", "on record, swept")
		return a
	}
	ask(operator.OutboxRequest{Kind: operator.KindOutboxRetry, Why: "bound", Filter: outbox.Filter{Keys: []string{"A"}}},
		"1 to be sent again")
	w.park(2*time.Hour, "old")
	w.Must(desk.PruneOutbox(t.Context()))
	acts := w.acts(operator.ActFilter{Kind: operator.KindOutboxDrop})
	assert.That(t, len(acts) == 1 && acts[0].Actor == "retention" && acts[0].Result.Deleted == 1,
		"the record says %+v", acts)
	a := ask(operator.OutboxRequest{Kind: operator.KindOutboxDrop, Why: "a test", All: true}, "2 deleted")
	assert.Has(t, string(a.Result.Report), `"key":"B"`, "what was dropped")
	for _, bad := range []operator.OutboxRequest{
		{Kind: operator.KindOutboxRetry}, {Kind: operator.KindReplay, All: true},
		{Kind: operator.KindOutboxRetry, Filter: outbox.Filter{State: "odd"}},
		{Kind: operator.KindOutboxDrop, All: true, Why: " "}, // without a reason
	} {
		assert.Error(t, bad.Check(), operator.ErrRequest, "%+v is asked for", bad)
	}
}

// Given a SELECT of what should have come, of which one message was lost and one is of unknown age; when a person asks
// the fleet to put the missing into the outbox, then a daemon that knows the SELECT does it, once, and the record says
// what it found.
func TestADaemonPutsWhatNobodyHasSeenIntoTheOutbox(t *testing.T) {
	w := newWorld(t).outbox()
	w.Exec("CREATE TABLE orders (id INT PRIMARY KEY, sn VARCHAR(20), body VARCHAR(20), at DATETIME)")
	w.Exec("INSERT INTO orders VALUES (1, 'lost', '{}', UTC_TIMESTAMP()), (2, 'old', '{}', NULL), " +
		"(3, 'without', NULL, UTC_TIMESTAMP())")
	w.daemon(func(o *operator.Options) {
		o.Expected = operator.Query{Text: "SELECT 'order.cancelled' AS msg_tag, sn AS msg_key, body, at AS created_at, " +
			"id AS after FROM orders WHERE id > ? ORDER BY id LIMIT ?", Params: []string{"after", "limit"}}
	})
	for round, want := range []string{"not_seen 2, put 1", "not_seen 2, outbox 1"} {
		a := w.ends(w.ask(anna, operator.TaskRequest{Kind: operator.KindExpected, Alone: "all",
			Detail: operator.ExpectedRequest{Publish: true}}).ID)
		var e operator.Expected
		w.Must(json.Unmarshal(a.Result.Report, &e))
		var all []string
		for _, f := range e.Found {
			all = append(all, fmt.Sprintf("%s %d", f.Where, f.Count))
		}
		slices.Sort(all)
		if have := strings.Join(all, ", "); a.State != operator.Done || have != want || a.Result.Retried != 1-round {
			t.Errorf("round %d: %s, %s %q; want %s", round, have, a.State, a.Error, want)
		}
		assert.Is(t, w.Number("SELECT COUNT(*) FROM rollbackd_outbox"), 1, "round %d: messages in the outbox", round)
	}
}
