package consumer

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given queues with messages, one of them gone, then each that is there has its depth, its consumers and its kind; and
// when RabbitMQ cannot be reached nothing is said, rather than what was true once.
func TestTheDepthOfEachQueueIsShownWhileItIsKnown(t *testing.T) {
	t.Parallel()
	b := stack.AMQP(t)
	q, reg := b.Name("depth"), prometheus.NewRegistry()
	cfg := Config{Queue: q, RetryDelays: []time.Duration{time.Second, time.Minute}, AMQPURLs: []string{b.URL},
		Logger: slog.New(slog.DiscardHandler), Registerer: reg}.withDefaults()
	connections := 0
	d := require.Get(newDepths([]Config{cfg}, func(context.Context, string) {}))(t)
	d.amqp.Opened = func() { connections++ }
	defer d.close()
	for _, name := range []string{q, rabbit.BackstopQueue(q), rabbit.DeadQueue(q), rabbit.RetryQueue(q, time.Second)} {
		b.DeclareQueue(name, nil)
	}
	for range 3 {
		b.Publish("", q, stack.Message{Body: []byte("{}")})
	}
	b.Publish("", rabbit.DeadQueue(q), stack.Message{Body: []byte("{}")})
	b.HoldExclusively(rabbit.BackstopQueue(q))
	shown := func() map[string]float64 {
		t.Helper()
		families := require.Get(reg.Gather())(t)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := strings.TrimPrefix(f.GetName(), "rollbackd_queue_")
				for _, label := range m.GetLabel() { // kind, queue
					name += " " + strings.TrimPrefix(label.GetValue(), q)
				}
				got[name] = m.GetGauge().GetValue()
			}
		}
		return got
	}

	if err := d.look(t.Context()); err == nil {
		t.Error("nothing is said of the queue that is missing")
	}
	want := map[string]float64{
		"messages_ready main ": 3, "messages_ready dead .dead": 1, "messages_ready backstop .backstop": 0,
		"messages_ready retry .retry.1s": 0, "consumers main ": 0, "consumers dead .dead": 0,
		"consumers backstop .backstop": 1, "consumers retry .retry.1s": 0,
	}
	if diff := cmp.Diff(want, shown()); diff != "" {
		t.Errorf("with one queue missing (-want +got):\n%s", diff)
	}

	// when the connection is cut, and then RabbitMQ is not there
	d.conn.Close()
	_ = d.look(t.Context())
	if diff := cmp.Diff(want, shown()); diff != "" || connections != 2 {
		t.Errorf("%d connections were made, want 2; (-want +got):\n%s", connections, diff)
	}
	d.conn.Close()
	d.amqp.URLs = []string{"amqp://127.0.0.1:1/"}
	if err := d.look(t.Context()); err == nil {
		t.Error("RabbitMQ is not there, and nothing is said")
	}
	if got := shown(); len(got) > 0 {
		t.Errorf("RabbitMQ is not there, and %v is shown", got)
	}
}
