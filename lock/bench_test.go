package lock

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/test/require"
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
	client := require.Get(OpenRedis(stack.Redis(b), RedisOptions{}))(b)
	defer client.Close()
	l := require.Get(NewRedis(client, Options{}))(b)
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
		require.OK(b, l.Done(b.Context(), marks))
	}
	b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "messages/s")
}
