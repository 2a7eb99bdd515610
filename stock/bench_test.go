package stock_test

import (
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/stock"
)

// BenchmarkRollback measures one transaction of a batch of messages with two items each, on one connection; the goods
// are shared by all messages. It reports messages per second beside Go's own time per transaction.
func BenchmarkRollback(b *testing.B) {
	for _, goods := range []int{10, 1000} {
		for _, batch := range []int{1, 10, 100, 500} {
			b.Run(fmt.Sprintf("goods=%d/batch=%d", goods, batch), func(b *testing.B) { benchmarkRollback(b, goods, batch) })
		}
	}
}

func benchmarkRollback(b *testing.B, goods, batch int) {
	w := newWorld(b)
	w.exec("DROP TRIGGER audit_changes")
	for sku := range goods {
		w.goods(1_000_000, 1_000_000+int64(sku))
	}
	requests := make([]stock.Request, batch)
	for i := range requests {
		items := []stock.Item{item(1_000_000+int64(i*7%goods), 2), item(1_000_000+int64((i*7+1)%goods), 1)}
		requests[i] = message(fmt.Sprintf("20261121-%08d", i*7919%100_000), fmt.Sprintf("9f1c2a4e-0000-4000-8000-%012d", i),
			items...)
	}
	fill(w, requests)
	fill(w, unrelated(20_000))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		must(b, w.tx(func(tx *gorm.DB) error { return stock.Rollback(b.Context(), tx, requests, stock.Options{}) }))
		b.StopTimer()
		w.exec("UPDATE stock_reservation SET status = 1, rollback_key = NULL WHERE status = 2")
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "messages/s")
}

func unrelated(n int) []stock.Request {
	all := make([]stock.Request, n)
	for i := range all {
		all[i] = message(fmt.Sprintf("2025%08d", i), "", item(1_000_000, 1))
	}
	return all
}

// fill makes the reservations that requests roll back.
func fill(w *world, requests []stock.Request) {
	w.t.Helper()
	var values []string
	flush := func() {
		if len(values) > 0 {
			w.exec("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES " +
				strings.Join(values, ","))
		}
		values = values[:0]
	}
	for _, r := range requests {
		for _, it := range r.Items {
			values = append(values, fmt.Sprintf("('%s',%d,%d,1,UTC_TIMESTAMP(6))", r.OrderSN, it.SKU, it.Quantity))
		}
		if len(values) > 1000 {
			flush()
		}
	}
	flush()
}
