package rabbit_test

import (
	"fmt"
	"testing"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// BenchmarkCollect measures taking and acking in batches of 500, without the time that publishing takes.
func BenchmarkCollect(b *testing.B) {
	broker := stack.AMQP(b)
	q := broker.Name("bench")
	broker.DeclareQueue(q, rabbit.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(100)})
	cfg := config(broker.URL)
	p := rabbit.NewPublisher(cfg)
	defer p.Close(b.Context()) //nolint:errcheck // nothing is left to lose
	batch := make([]rabbit.Publishing, 1000)
	for i := range batch {
		batch[i] = rabbit.Publishing{
			Key: q, Message: rabbit.Message{
				MessageID: fmt.Sprint(i), Body: make([]byte, 120), Headers: rabbit.Table{"x-message-key": "k"},
			},
		}
	}
	for sent := 0; sent < b.N; sent += len(batch) {
		for _, err := range p.Publish(b.Context(), batch) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	c := require.Get(rabbit.Dial(b.Context(), cfg))(b)
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

// BenchmarkPublish measures confirmed publishing of copies in batches of 500 by four lanes.
func BenchmarkPublish(b *testing.B) {
	broker := stack.AMQP(b)
	q := broker.Name("bench")
	broker.DeclareQueue(q, rabbit.Table{"x-queue-type": "quorum"})
	p := rabbit.NewPublisher(config(broker.URL))
	defer p.Close(b.Context()) //nolint:errcheck // nothing is left to lose
	batch := make([]rabbit.Publishing, 500)
	for i := range batch {
		batch[i] = rabbit.Publishing{
			Key: q, Message: rabbit.Message{
				MessageID: fmt.Sprint(i), Body: make([]byte, 120), Headers: rabbit.Table{"x-message-key": "k"},
			},
		}
	}
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
