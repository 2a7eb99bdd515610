package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/stock"
)

// tables are those of the shop: what its services write, and what the daemon's handler gives back to. Who cannot do
// something stops the step.
type tables interface {
	fmt.Stringer
	// settings are the daemon's.
	settings() []string
	// create makes what migrate does not.
	create(ctx context.Context, pool *sql.DB)
	// fill puts the goods on stock.
	fill(ctx context.Context, pool *sql.DB)
	// reserve lets an order take its goods, in a transaction that others may share.
	reserve(ctx context.Context, tx *gorm.DB, o shop.Order)
}

// stockTables are those of package stock.
type stockTables struct{}

func (stockTables) String() string                    { return "the stock's among them" }
func (stockTables) settings() []string                { return nil }
func (stockTables) create(context.Context, *sql.DB)   {}
func (stockTables) fill(c context.Context, p *sql.DB) { must.OK(shop.Stock(c, p, skus, amount)) }

func (stockTables) reserve(ctx context.Context, tx *gorm.DB, o shop.Order) {
	must.OK(stock.Reserve(ctx, tx, o.SN, o.Items))
}

// classicTables are an order with a state and a row of stock for each of the goods: those of an example, whose
// statements the daemon runs.
type classicTables struct{}

// example is the folder of the statements, from the repository's root, where make runs.
const example = "deploy/examples/sql/overtaking"

// views show the oracle what it reads, under the names that it knows. Who released an order stands nowhere in the
// classic tables; it must have been the message of that order.
var views = []string{
	`CREATE TABLE tb_order_item (
	order_sn VARCHAR(64) NOT NULL, goods_id BIGINT NOT NULL, quantity INT NOT NULL, PRIMARY KEY (order_sn, goods_id)
) ENGINE=InnoDB`,
	"CREATE VIEW stock AS SELECT goods_id AS sku_id, amount FROM tb_stock",
	`CREATE VIEW stock_reservation AS
SELECT order_sn, goods_id AS sku_id, quantity, IF(status = 'cancelling', 1, 2) AS status,
	'stock.rollback' AS rollback_tag, CONCAT('rollback-', order_sn) AS rollback_key
FROM tb_order JOIN tb_order_item USING (order_sn)`,
}

func (classicTables) String() string { return "tb_order and tb_stock are the shop's own" }

func (classicTables) settings() []string {
	return []string{
		config.Prefix + "HANDLER=" + config.HandlerSQL,
		config.Prefix + "SQL_FILE=" + filepath.Join(example, "handler.sql"),
	}
}

func (classicTables) create(ctx context.Context, pool *sql.DB) {
	text := must.Get(os.ReadFile(filepath.Join(example, "tables.sql"))) // the demo runs in the repository's root
	all := append(strings.Split(strings.TrimSpace(string(text)), ";\n"), views...)
	for _, statement := range append(all, "DELETE FROM tb_order", "DELETE FROM tb_stock") {
		must.Exec(ctx, pool, strings.TrimSuffix(statement, ";"))
	}
}

func (classicTables) fill(ctx context.Context, pool *sql.DB) {
	goods := make([]string, skus)
	for i := range goods {
		goods[i] = fmt.Sprintf("(%d,%d)", i+1, amount)
	}
	must.Exec(ctx, pool, "INSERT INTO tb_stock VALUES "+strings.Join(goods, ","))
}

// reserve writes an order that is being cancelled already: its rollback comes next.
func (classicTables) reserve(ctx context.Context, tx *gorm.DB, o shop.Order) {
	tx = tx.WithContext(ctx)
	must.OK(tx.Exec("INSERT INTO tb_order VALUES (?, 'cancelling')", o.SN).Error)
	for _, it := range o.Items {
		must.OK(tx.Exec("INSERT INTO tb_order_item VALUES (?, ?, ?)", o.SN, it.SKU, it.Quantity).Error)
		took := tx.Exec("UPDATE tb_stock SET amount = amount - ? WHERE goods_id = ? AND amount >= ?", it.Quantity, it.SKU,
			it.Quantity)
		must.OK(took.Error)
		if took.RowsAffected != 1 {
			must.OK(stock.ErrOutOfStock, "take ", it.Quantity, " of sku ", it.SKU)
		}
	}
}
