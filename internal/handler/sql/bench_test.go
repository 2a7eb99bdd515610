package sql

import (
	"fmt"
	"testing"
)

// BenchmarkHandle is a batch of 1,000 orders with two items each of 100 goods: an order's state and the stock, message
// by message and joined.
func BenchmarkHandle(b *testing.B) {
	const size = 1000
	for _, joined := range []bool{false, true} {
		b.Run(fmt.Sprintf("joined=%t", joined), func(b *testing.B) {
			w := newWorld(b, joinTables)
			f := w.parse(joinFile)
			if !joined {
				f.plan.Store(nil)
			}
			h := New(f)
			bodies := make([]string, size)
			w.fill(0, 100)
			for i := range bodies {
				bodies[i] = order(fmt.Sprint("o", i), 0, item(1+i%100, 1+i%5), item(1+(i*7)%100, 1+i%3))
			}
			tx, err := w.pool.BeginTx(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			for i := range size {
				_, err := tx.ExecContext(b.Context(), "INSERT INTO tb_order VALUES (?, 'open')", fmt.Sprint("o", i))
				if err != nil {
					b.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			for b.Loop() {
				msgs := messages(bodies...)
				if err := w.handle(h, msgs...); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				w.exec("UPDATE tb_order SET state = 'open'")
				b.StartTimer()
			}
			b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
