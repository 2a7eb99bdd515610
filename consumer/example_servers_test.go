package consumer_test

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/example/producer"
)

// exampleServers are a RabbitMQ and a MySQL for one example, and a producer.
func exampleServers() exampleSet { return exampleSet{producer.All()} }

type exampleSet struct{ *producer.Servers }

// Until is the context of a consumer that stops when n deliveries have ended, and what says that one has.
func (s exampleSet) Until(n int64) (ctx context.Context, ended func()) {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	s.Cleanup(stop)
	var left atomic.Int64
	left.Store(n)
	return ctx, func() {
		if left.Add(-1) == 0 {
			stop()
		}
	}
}
