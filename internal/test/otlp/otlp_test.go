package otlp

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m, program.Remove) }

// receiver is the collector's, with everything that it got.
type receiver struct {
	http, grpc string // addresses
	sink       *consumertest.TracesSink
	metrics    *consumertest.MetricsSink
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{http: stack.FreeAddr(t), grpc: stack.FreeAddr(t), sink: new(consumertest.TracesSink),
		metrics: new(consumertest.MetricsSink)}
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.OK(t, confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"http": map[string]any{"endpoint": r.http}, "grpc": map[string]any{"endpoint": r.grpc},
	}}).Unmarshal(cfg))
	settings := receivertest.NewNopSettings(factory.Type())
	for _, one := range []component.Component{
		require.Get(factory.CreateTraces(t.Context(), settings, cfg, r.sink))(t),
		require.Get(factory.CreateMetrics(t.Context(), settings, cfg, r.metrics))(t),
	} {
		require.OK(t, one.Start(t.Context(), componenttest.NewNopHost()))
		t.Cleanup(func() { assert.OK(t, one.Shutdown(context.WithoutCancel(t.Context()))) })
	}
	return r
}

// span is one that was received, with the name of the service that sent it.
type span struct {
	ptrace.Span

	service string
}

func (s span) text(attribute string) string {
	v, ok := s.Attributes().Get(attribute)
	if !ok {
		return ""
	}
	return v.AsString()
}

func (s span) id() string { return s.TraceID().String() + "/" + s.SpanID().String() }

func (s span) parent() string { return s.TraceID().String() + "/" + s.ParentSpanID().String() }

func (s span) links() (ids []string) {
	for _, l := range s.Links().All() {
		ids = append(ids, l.TraceID().String()+"/"+l.SpanID().String())
	}
	return ids
}

func (r *receiver) spans() (all []span) {
	for _, traces := range r.sink.AllTraces() {
		for _, of := range traces.ResourceSpans().All() {
			name, _ := of.Resource().Attributes().Get("service.name")
			for _, scope := range of.ScopeSpans().All() {
				for _, s := range scope.Spans().All() {
					all = append(all, span{s, name.AsString()})
				}
			}
		}
	}
	return all
}

// find waits for n spans that are as yes says.
func (r *receiver) find(t *testing.T, what string, n int, yes func(span) bool) []span {
	t.Helper()
	var found []span
	poll.Until(t, what, func() bool {
		found = slices.DeleteFunc(r.spans(), func(s span) bool { return !yes(s) })
		return len(found) >= n
	})
	assert.AtMost(t, len(found), n, "%s: spans", what)
	return found
}

// value is what the receiver was told last of a metric of shop-rollbacks, with these attributes; -1: nothing.
func (r *receiver) value(name string, attributes map[string]any) (last float64) {
	last = -1
	for _, batch := range r.metrics.AllMetrics() {
		for _, of := range batch.ResourceMetrics().All() {
			if service, _ := of.Resource().Attributes().Get("service.name"); service.AsString() != "shop-rollbacks" {
				continue
			}
			for _, scope := range of.ScopeMetrics().All() {
				for _, m := range scope.Metrics().All() {
					if m.Name() != name || m.Type() != pmetric.MetricTypeSum {
						continue
					}
					for _, point := range m.Sum().DataPoints().All() {
						if maps.Equal(point.Attributes().AsRaw(), attributes) {
							last = point.DoubleValue()
						}
					}
				}
			}
		}
	}
	return last
}

// others are the service that is called and the webhook: both note what traces they are told of.
type others struct {
	mu     sync.Mutex
	fails  map[string]int      // answers by body; 0: 200; guarded by mu
	parent map[string][]string // of calls, by body; of the webhook by its path; guarded by mu
	state  map[string]string   // guarded by mu
}

func (o *others) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	key := string(body)
	if r.URL.Path == "/webhook" {
		key = r.URL.Path
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parent[key] = append(o.parent[key], r.Header.Get("Traceparent"))
	o.state[key] = r.Header.Get("Tracestate")
	if status := o.fails[key]; status != 0 {
		w.WriteHeader(status)
	}
}

func (o *others) answer(key string, status int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fails[key] = status
}

func (o *others) told(key string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.parent[key])
}

// idOf is trace/span of a traceparent.
func idOf(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 {
		return ""
	}
	return parts[1] + "/" + parts[2]
}

// Given messages that say which spans published them, when they are called for, fail, are retried, dead-lettered and
// replayed, then the receiver gets a span for each batch, linked to all of them, and one for each call, whose parent is
// the span that published the message, at each attempt and after the replay; and the service and the webhook are told
// of the spans that called them. And it gets what /metrics shows.
func TestTracesGoOnFromTheProducerToTheServiceAndTheWebhook(t *testing.T) {
	t.Run("http", func(t *testing.T) { goesOn(t, "http/protobuf", func(r *receiver) string { return r.http }) })
	t.Run("grpc", func(t *testing.T) { goesOn(t, "grpc", func(r *receiver) string { return r.grpc }) })
}

func goesOn(t *testing.T, protocol string, addr func(*receiver) string) {
	r, binary := startReceiver(t), program.Shared(t)
	o := &others{fails: map[string]int{}, parent: map[string][]string{}, state: map[string]string{}}
	at := httptest.NewServer(o)
	t.Cleanup(at.Close)
	b := stack.AMQP(t)
	queue := b.Name("stock.rollback")
	env := []string{
		"PATH=" + os.Getenv("PATH"), "ROLLBACKD_AMQP_URL=" + b.URL, "ROLLBACKD_MYSQL_DSN=" + stack.MySQL(t),
		"ROLLBACKD_REDIS_URL=off", "ROLLBACKD_QUEUE=" + queue, "ROLLBACKD_EXCHANGE=" + b.Name("stock"),
		"ROLLBACKD_HANDLER=http", "ROLLBACKD_HTTP_TARGET=" + at.URL + "/call", "ROLLBACKD_HTTP_ADDR=127.0.0.1:0",
		"ROLLBACKD_DEAD_LETTER_WEBHOOK=" + at.URL + "/webhook", "ROLLBACKD_HANDLER_TIMEOUT=2s", "ROLLBACKD_HTTP_TIMEOUT=1s",
		"ROLLBACKD_LEASE=5s", "ROLLBACKD_RETRY_DELAYS=100ms,200ms,300ms,400ms", "ROLLBACKD_LANES=1",
		"ROLLBACKD_BATCH_LINGER=2s",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + addr(r), "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol,
		"OTEL_SERVICE_NAME=shop-rollbacks", "OTEL_BSP_SCHEDULE_DELAY=200",
		"OTEL_METRIC_EXPORT_INTERVAL=200",
	}
	require.Get(program.Run(t.Context(), binary, env, "migrate"))(t)
	o.answer(`"retried"`, http.StatusInternalServerError)
	o.answer(`"dead"`, http.StatusUnprocessableEntity)
	published := map[string]string{} // trace/span by body
	for i, body := range []string{`"fine"`, `"retried"`, `"dead"`} {
		parent := fmt.Sprintf("00-%032x-%016x-01", 0xabc0+i, 0xdef0+i)
		published[body] = idOf(parent)
		b.Publish("", queue, stack.Message{
			MessageId: body, Type: "t", Body: []byte(body), DeliveryMode: 2,
			Headers: map[string]any{"traceparent": parent, "tracestate": "shop=checkout"},
		})
	}
	daemon := program.Serve(t, program.Options{Path: binary, Args: []string{"run"}, Env: env})
	poll.Until(t, "the second attempt", func() bool { return len(o.told(`"retried"`)) >= 2 })
	o.answer(`"retried"`, 0) // at once: it has three attempts more
	callsOf := func(body string, n int) []span {
		t.Helper()
		return r.find(t, "calls of "+body, n, func(s span) bool { return s.text("messaging.message.id") == body })
	}

	// the first attempt of each is a child of what published it, and the service is told of the call
	fine := callsOf(`"fine"`, 1)[0]
	if fine.parent() != published[`"fine"`] || fine.service != "shop-rollbacks" || fine.Kind() != ptrace.SpanKindConsumer {
		t.Errorf("the call's parent is %s of %s, want %s of shop-rollbacks", fine.parent(), fine.service, published[`"fine"`])
	}
	told := o.told(`"fine"`)
	assert.That(t, len(told) == 1 && idOf(told[0]) == fine.id(), "the service was told of %v, want %s", told, fine.id())
	o.mu.Lock()
	assert.Is(t, o.state[`"fine"`], "shop=checkout", "the tracestate")
	o.mu.Unlock()
	// the batch is linked to all three, and is nobody's child
	batch := r.find(t, "the first batch", 1, func(s span) bool {
		return s.text("messaging.batch.message_count") == "3"
	})[0]
	links := batch.links()
	for body, id := range published {
		assert.That(t, slices.Contains(links, id), "the batch is linked to %v, not to %s of %s", links, id, body)
	}
	if !batch.ParentSpanID().IsEmpty() || len(links) != 3 || batch.text("messaging.destination.name") != queue {
		t.Errorf("the batch has the parent %s, %d links, and is of %s", batch.ParentSpanID(), len(links),
			batch.text("messaging.destination.name"))
	}
	assert.Equal(t, fine.links(), []string{batch.id()}, "the call is linked to the batch")
	// what comes again from a retry queue is still a child of what published it
	poll.Until(t, "an attempt that is not an error", func() bool {
		return slices.ContainsFunc(r.spans(), func(s span) bool {
			return s.text("messaging.message.id") == `"retried"` && s.Status().Code() != ptrace.StatusCodeError
		})
	})
	for _, s := range r.spans() {
		if s.text("messaging.message.id") == `"retried"` && s.parent() != published[`"retried"`] {
			t.Errorf("attempt %s has the parent %s, want %s", s.text("rollbackd.attempt"), s.parent(), published[`"retried"`])
		}
	}
	// the webhook is told of the span that posts to it
	post := r.find(t, "the webhook", 1, func(s span) bool { return s.Name() == "POST dead-letter webhook" })[0]
	told = o.told("/webhook")
	assert.That(t, len(told) == 1 && idOf(told[0]) == post.id(), "the webhook was told of %v, want %s", told, post.id())
	// and so is what a person replays from the letter
	callsOf(`"dead"`, 1)
	o.answer(`"dead"`, 0)
	require.Get(program.Run(t.Context(), binary, env, "dlq", "replay", "--all"))(t)
	for _, s := range callsOf(`"dead"`, 2) {
		assert.Is(t, s.parent(), published[`"dead"`], "of %s replays, the call has the parent", s.text("rollbackd.replays"))
	}
	poll.Until(t, "three applied messages among the metrics", func() bool {
		return r.value("rollbackd_deliveries_total", map[string]any{"queue": queue, "outcome": "applied"}) == 3
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := daemon.Stop(ctx)
	assert.That(t, err == nil && code == 0, "the daemon ended with %d, %v", code, err)
}
