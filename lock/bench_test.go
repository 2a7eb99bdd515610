package lock

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/test/stack"
)

func BenchmarkNameOf(b *testing.B) {
	schema := uuid.NewString()
	b.ReportAllocs()
	for b.Loop() {
		_ = NameOf(schema, "stock-rollback", "stock.rollback", "20261121-0001")
	}
}

// BenchmarkBatch is what a healthy batch of 500 asks of Redis: lock all, then mark all done.
func BenchmarkBatch(b *testing.B) {
	const size = 500
	client, err := OpenRedis(stack.Redis(b), RedisOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	l, err := NewRedis(client, Options{})
	if err != nil {
		b.Fatal(err)
	}
	schema := uuid.NewString()
	names, marks := make([]Name, size), make([]Mark, size)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		for i := range names {
			names[i] = NameOf(schema, "g", "t", fmt.Sprint(n, "/", i))
			marks[i].Name = names[i]
		}
		held, err := l.Lock(b.Context(), "token", names)
		if err != nil || held[0].Hold != Mine {
			b.Fatal(held, err)
		}
		if err := l.Done(b.Context(), marks); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "messages/s")
}
