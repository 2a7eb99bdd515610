package stock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/stock"
)

// placeOrder writes the order and takes its goods, both or none.
func placeOrder(ctx context.Context, db *gorm.DB, order string, items ...stock.Item) error {
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO shop_order (sn) VALUES (?)", order).Error; err != nil {
			return err
		}
		return stock.Reserve(ctx, tx, order, items)
	})
}

// A shop takes goods while enough are left.
func ExampleReserve() {
	servers := exampleServers() // ten pieces of 1001 are on stock
	defer servers.Close()
	servers.Exec("CREATE TABLE shop_order (sn VARCHAR(64) PRIMARY KEY)")

	ctx := context.Background()
	db, _, err := dedup.Open(ctx, servers.MySQLDSN, dedup.OpenOptions{}) // READ COMMITTED
	if err != nil {
		log.Panic(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()

	for _, order := range []string{"order-1", "order-2"} {
		err := placeOrder(ctx, db, order, stock.Item{SKU: 1001, Quantity: 6})
		switch {
		case errors.Is(err, stock.ErrOutOfStock):
			fmt.Println(err)
		case err != nil:
			log.Panic(err)
		default:
			fmt.Println(order, "is placed")
		}
	}
	servers.Show("SELECT sn FROM shop_order")
	servers.Show("SELECT amount FROM stock WHERE sku_id = 1001")
	// Output:
	// order-1 is placed
	// reserve for order "order-2": sku 1001: out of stock: asked for 6, left are 4
	// order-1
	// 4
}
