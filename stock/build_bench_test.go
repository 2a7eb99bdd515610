package stock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
)

// BenchmarkBuildRollbackOf500 is what a Rollback of a batch costs the client without the database: plan, decision and
// the text of its statements. Its pool takes every statement and says what the true one would.
func BenchmarkBuildRollbackOf500(b *testing.B) {
	const size, goods = 500, 800 // as many goods as one statement takes
	requests := make([]Request, size)
	for i := range requests {
		requests[i] = Request{
			OrderSN: fmt.Sprintf("20261121-%08d", i*7919%100_000), Tag: "stock.rollback",
			Key:   fmt.Sprintf("9f1c2a4e-0000-4000-8000-%012d", i),
			Items: []Item{{SKU: int64(i*7%goods) + 1, Quantity: 2}, {SKU: int64((i*7+1)%goods) + 1, Quantity: 1}},
		}
	}
	ctx, pool := context.Background(), &agreeable{}
	statements := 0
	b.ReportAllocs()
	for b.Loop() {
		s := session{pool: pool, buf: make([]byte, 0, statementBytes*size)}
		p := newPlan(requests, Retry)
		for i := range requests {
			for _, it := range requests[i].Items {
				if err := p.add([]byte(requests[i].OrderSN), row{
					sku: it.SKU, quantity: it.Quantity, status: reserved, request: nobody,
				}); err != nil {
					b.Fatal(err)
				}
			}
		}
		p.file()
		if err := p.decide(); err != nil {
			b.Fatal(err)
		}
		pool.changed, pool.bytes = 2*size, 0
		if err := s.release(ctx, p); err != nil {
			b.Fatal(err)
		}
		pool.changed = int64(len(p.sums()))
		if err := s.restock(ctx, p); err != nil {
			b.Fatal(err)
		}
		statements = pool.bytes
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/message")
	b.ReportMetric(float64(statements)/size, "bytes/message")
}

// agreeable runs nothing.
type agreeable struct {
	changed int64
	bytes   int
}

func (a *agreeable) ExecContext(_ context.Context, query string, _ ...any) (sql.Result, error) {
	a.bytes += len(query)
	return a, nil
}
func (a *agreeable) LastInsertId() (int64, error) { return 0, nil }
func (a *agreeable) RowsAffected() (int64, error) { return a.changed, nil }

var errNotHere = errors.New("this pool only takes statements")

func (*agreeable) PrepareContext(context.Context, string) (*sql.Stmt, error) { return nil, errNotHere }
func (*agreeable) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errNotHere
}
func (*agreeable) QueryRowContext(context.Context, string, ...any) *sql.Row { return &sql.Row{} }
