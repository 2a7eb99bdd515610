package shop

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// rowsPerInsert keeps a statement well below every server's packet limit.
const rowsPerInsert = 1000

// Stock puts amount pieces of each of the skus 1 to skus on stock.
func Stock(ctx context.Context, db *sql.DB, skus int, amount int64) error {
	all := make([][]any, skus)
	for i := range all {
		all[i] = []any{i + 1, amount}
	}
	return insert(ctx, db, "INSERT INTO stock (sku_id, amount) VALUES ", "(%d,%d)", all)
}

// SeedReserved writes the orders' reservations as they are after package stock has made them. It is for runs that need
// so many that making them one by one would take longer than the run; the stock must hold what the orders have taken.
func SeedReserved(ctx context.Context, db *sql.DB, orders []Order) error {
	var reservations [][]any
	taken := map[int64]int64{}
	for _, o := range orders {
		for _, it := range o.Items {
			reservations = append(reservations, []any{[]byte(o.SN), it.SKU, it.Quantity})
			taken[it.SKU] += it.Quantity
		}
	}
	return must.Catch(func() {
		must.OK(insert(ctx, db, "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ",
			"(x'%x',%d,%d,1)", reservations))
		for sku, n := range taken {
			res := must.Get(db.ExecContext(ctx, "UPDATE stock SET amount = amount - ? WHERE sku_id = ?", n, sku))
			if changed := must.Get(res.RowsAffected()); changed != 1 {
				must.OK(fmt.Errorf("take %d of sku %d: %d rows changed", n, sku, changed))
			}
		}
	})
}

// insert runs head with rows in the given form, many at a time.
func insert(ctx context.Context, db *sql.DB, head, form string, rows [][]any) error {
	for chunk := range slices.Chunk(rows, rowsPerInsert) {
		text := []byte(head)
		for i, row := range chunk {
			if i > 0 {
				text = append(text, ',')
			}
			text = fmt.Appendf(text, form, row...)
		}
		if _, err := db.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("%s… %d rows: %w", head, len(chunk), err)
		}
	}
	return nil
}
