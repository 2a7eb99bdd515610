package oracle

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Stock is what there is of each sku.
type Stock map[int64]Goods

// Goods is one sku's stock and what orders hold of it.
type Goods struct{ Amount, Reserved, Released, Deducted int64 }

// Total is what must not change by any rollback: released goods are in the amount again.
func (g Goods) Total() int64 { return g.Amount + g.Reserved + g.Deducted }

// Sum adds all skus up.
func (s Stock) Sum() Goods {
	var sum Goods
	for _, g := range s {
		sum.Amount += g.Amount
		sum.Reserved += g.Reserved
		sum.Released += g.Released
		sum.Deducted += g.Deducted
	}
	return sum
}

// ReadStock reads the tables of package stock in one snapshot.
func ReadStock(ctx context.Context, db *sql.DB) (Stock, error) {
	tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("read the stock: %w", err)
	}
	defer tx.Rollback() // it has read only
	s := Stock{}
	rows, err := tx.QueryContext(ctx, "SELECT sku_id, amount FROM stock")
	err = scanAll(rows, err, func() error {
		var sku, amount int64
		if err := rows.Scan(&sku, &amount); err != nil {
			return err
		}
		s[sku] = Goods{Amount: amount}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the stock: %w", err)
	}
	held, err := tx.QueryContext(ctx,
		`SELECT sku_id, SUM(IF(status = 1, quantity, 0)), SUM(IF(status = 2, quantity, 0)), SUM(IF(status = 3, quantity, 0))
		FROM stock_reservation GROUP BY sku_id`)
	err = scanAll(held, err, func() error {
		var sku, reserved, released, deducted int64
		if err := held.Scan(&sku, &reserved, &released, &deducted); err != nil {
			return err
		}
		s[sku] = Goods{s[sku].Amount, reserved, released, deducted}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the reservations: %w", err)
	}
	return s, nil
}

// scanAll calls scan for each row and closes rows; err is the query's.
func scanAll(rows *sql.Rows, err error, scan func() error) error {
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := scan(); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// checkSums is rule 1.
func (r *Report) checkSums(before, after Stock, restocked map[int64]int64) {
	skus := maps.Clone(after)
	maps.Copy(skus, before)
	for _, sku := range slices.Sorted(maps.Keys(skus)) {
		want, got := before[sku].Total()+restocked[sku], after[sku].Total()
		if got != want {
			r.find("stock", "sku %d has %d in all (%+v), want %d (%+v at first, restocked %d)", sku, got, after[sku], want,
				before[sku], restocked[sku])
		}
		if g := after[sku]; min(g.Amount, g.Reserved, g.Released, g.Deducted) < 0 {
			r.find("stock", "sku %d has something negative: %+v", sku, g)
		}
	}
}

// checkHalves is rule 5: what a success row stands for is released, and what is released has a success row.
func (w World) checkHalves(ctx context.Context, r *Report, l *Ledger, rows map[rowKey]row) error {
	reserved, err := w.openOrders(ctx)
	if err != nil {
		return err
	}
	for n, m := range l.messages {
		if m.order == "" || reserved[m.order] == 0 {
			continue
		}
		if own, ok := ownRow(rows, n, m); ok && own.status == success {
			r.find("half batch", "message %v is applied, but %d items of order %q are still reserved", n.key, reserved[m.order],
				m.order)
		}
	}
	return w.releasedBy(ctx, func(order, tag, key string, n int) {
		if own, ok := rows[rowKey{tag, key}]; !ok || own.status != success {
			r.find("half batch", "%d items of order %q are released by message %s/%s, whose row does not say success: %+v", n,
				order, tag, key, own)
		}
	})
}

// openOrders counts the reserved items of every order that has some.
func (w World) openOrders(ctx context.Context) (map[string]int, error) {
	reserved := map[string]int{}
	rows, err := w.DB.QueryContext(ctx, "SELECT order_sn, COUNT(*) FROM stock_reservation WHERE status = 1 GROUP BY "+
		"order_sn")
	err = scanAll(rows, err, func() error {
		var order string
		var n int
		err := rows.Scan(&order, &n)
		reserved[order] = n
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is still reserved: %w", err)
	}
	return reserved, nil
}

// releasedBy calls see for every order and message that released items of it.
func (w World) releasedBy(ctx context.Context, see func(order, tag, key string, n int)) error {
	rows, err := w.DB.QueryContext(ctx, `SELECT order_sn, COALESCE(rollback_tag, ''), COALESCE(rollback_key, ''), COUNT(*)
		FROM stock_reservation WHERE status = 2 GROUP BY 1, 2, 3`)
	err = scanAll(rows, err, func() error {
		var order, tag, key string
		var n int
		if err := rows.Scan(&order, &tag, &key, &n); err != nil {
			return err
		}
		see(order, tag, key, n)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what was released by whom: %w", err)
	}
	return nil
}
