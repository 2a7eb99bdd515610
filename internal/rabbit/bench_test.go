package rabbit_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// BenchmarkCollect measures taking and acking in batches of 500, without the time that publishing takes.
func BenchmarkCollect(b *testing.B) {
	broker, q, p := benched(b)
	batch := toBench(q, 1000)
	for sent := 0; sent < b.N; sent += len(batch) {
		require.OK(b, p.Publish(b.Context(), batch)...)
	}
	c := require.Get(rabbit.Dial(b.Context(), config(broker.URL)))(b)
	defer c.Close() //nolint:errcheck // nothing is left to lose
	s := require.Get(c.Consume(b.Context(), q, "bench", 2000))(b)
	b.ReportAllocs()
	b.ResetTimer()
	var buf []rabbit.Delivery
	for n := 0; n < b.N; n += len(buf) {
		buf = require.Get(s.Collect(b.Context(), min(500, b.N-n), 0, buf))(b)
		require.OK(b, s.Ack(buf[len(buf)-1].Tag, true))
	}
}

// benched is a broker with a queue, and who publishes to it.
func benched(b *testing.B) (broker *stack.Broker, q string, p *rabbit.Publisher) {
	broker = stack.AMQP(b)
	q = broker.Name("bench")
	broker.DeclareQueue(q, rabbit.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(100)})
	p = rabbit.NewPublisher(config(broker.URL))
	b.Cleanup(func() { _ = p.Close(context.WithoutCancel(b.Context())) }) // nothing is left to lose
	return broker, q, p
}

// toBench is a batch of usual messages.
func toBench(q string, n int) []rabbit.Publishing {
	batch := make([]rabbit.Publishing, n)
	for i := range batch {
		batch[i] = rabbit.Publishing{Key: q, Message: rabbit.Message{
			MessageID: fmt.Sprint(i), Body: make([]byte, 120), Headers: rabbit.Table{"x-message-key": "k"},
		}}
	}
	return batch
}

// BenchmarkPublish measures confirmed publishing of copies in batches of 500 by four lanes.
func BenchmarkPublish(b *testing.B) {
	_, q, p := benched(b)
	batch := toBench(q, 500)
	b.ReportAllocs()
	b.ResetTimer()
	b.SetParallelism(2)
	b.RunParallel(func(pb *testing.PB) {
		for n, more := 0, true; more; n = 0 {
			for n < len(batch) && pb.Next() {
				n++
			}
			more = n == len(batch)
			for _, err := range p.Publish(b.Context(), batch[:n]) {
				if err != nil {
					b.Error(err)
					return
				}
			}
		}
	})
}
