package rabbit_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

func config(url string) rabbit.Config {
	return rabbit.Config{
		URLs: []string{url}, Name: rabbit.ConnectionName("test"), Heartbeat: 2 * time.Second, DialTimeout: 10 * time.Second,
		ConfirmTimeout: 10 * time.Second, CloseTimeout: 2 * time.Second,
	}
}

func dial(t *testing.T, url string) *rabbit.Conn {
	t.Helper()
	return dialWith(t, config(url))
}

func dialWith(t *testing.T, cfg rabbit.Config) *rabbit.Conn {
	t.Helper()
	c := require.Get(rabbit.Dial(t.Context(), cfg))(t)
	t.Cleanup(func() { require.OK(t, c.Close()) })
	return c
}

func quorum(more rabbit.Table) rabbit.Table {
	args := rabbit.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(1000)}
	maps.Copy(args, more)
	return args
}

// fresh is a broker with a quorum queue for this test alone.
func fresh(t *testing.T) (b *stack.Broker, q string) {
	t.Helper()
	b = stack.AMQP(t)
	q = b.Name("queue")
	b.DeclareQueue(q, quorum(nil))
	return b, q
}

// filled is such a queue with n messages, and who consumes it.
func filled(t *testing.T, n, prefetch int) (b *stack.Broker, q string, s *rabbit.Subscription) {
	t.Helper()
	b, q = fresh(t)
	publishN(t, publisher(t, config(b.URL)), q, n)
	return b, q, consume(t, dial(t, b.URL), q, prefetch)
}

func consume(t *testing.T, c *rabbit.Conn, queue string, prefetch int) *rabbit.Subscription {
	t.Helper()
	return require.Get(c.Consume(t.Context(), queue, rabbit.ConsumerTag(1), prefetch))(t)
}

// collect takes n deliveries.
func collect(t *testing.T, s *rabbit.Subscription, n int) []rabbit.Delivery {
	t.Helper()
	var all, buf []rabbit.Delivery
	for len(all) < n {
		buf = require.Get(s.Collect(within(t), n-len(all), 0, buf))(t)
		all = append(all, buf...)
	}
	return all
}

func publishN(t *testing.T, p *rabbit.Publisher, queue string, n int) {
	t.Helper()
	var batch []rabbit.Publishing
	for i := range n {
		batch = append(batch, to(queue, fmt.Sprint(i)))
	}
	require.OK(t, p.Publish(t.Context(), batch)...)
}

// verdicts publishes a batch; want has the errors of those that are not to be published, by their places.
func verdicts(t *testing.T, p *rabbit.Publisher, batch []rabbit.Publishing, want map[int]error) {
	t.Helper()
	for i, err := range p.Publish(t.Context(), batch) {
		assert.That(t, errors.Is(err, want[i]) && (err == nil || want[i] != nil), "message %d (%.20q): %v, want %v", i,
			batch[i].MessageID, err, want[i])
	}
}

func publisher(t *testing.T, cfg rabbit.Config) *rabbit.Publisher {
	t.Helper()
	p := rabbit.NewPublisher(cfg)
	t.Cleanup(func() { _ = p.Close(context.WithoutCancel(t.Context())) }) // some tests leave a dead broker behind
	return p
}

// within bounds what must happen soon, so that a test fails instead of hanging.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
