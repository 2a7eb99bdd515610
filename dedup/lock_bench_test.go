package dedup

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/internal/stack"
)

func BenchmarkLockKey(b *testing.B) {
	schema, k := uuid.NewString(), Key{Group: "stock-rollback", Tag: "stock.rollback", Name: "20261121-0001"}
	b.ReportAllocs()
	for b.Loop() {
		_ = newLockKey(schema, k)
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
	l, err := NewRedisLock(client, RedisLockOptions{SchemaID: uuid.NewString()})
	if err != nil {
		b.Fatal(err)
	}
	keys, marks := make([]LockKey, size), make([]Mark, size)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		for i := range keys {
			keys[i] = l.LockKey(Key{Group: "g", Tag: "t", Name: fmt.Sprint(n, "/", i)})
			marks[i].Key = keys[i]
		}
		held, err := l.Lock(b.Context(), "token", keys)
		if err != nil || held[0].Hold != Mine {
			b.Fatal(held, err)
		}
		if err := l.Done(b.Context(), marks); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "messages/s")
}
