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

// inTransaction runs one of the acts of package stock by itself.
func inTransaction(ctx context.Context, db *gorm.DB, act func(tx *gorm.DB) error) error {
	return db.WithContext(ctx).Transaction(act)
}

// The goods of an order are shipped: from then on nothing gives them back.
func ExampleConfirm() {
	servers := exampleServers() // ten pieces of 1001 are on stock
	defer servers.Close()

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

	err = inTransaction(ctx, db, func(tx *gorm.DB) error {
		return stock.Reserve(ctx, tx, "order-1", []stock.Item{{SKU: 1001, Quantity: 6}})
	})
	if err != nil {
		log.Panic(err)
	}
	err = inTransaction(ctx, db, func(tx *gorm.DB) error { return stock.Confirm(ctx, tx, "order-1") })
	if err != nil {
		log.Panic(err)
	}
	late := []stock.Request{{OrderSN: "order-1", Tag: "order.cancelled", Key: "order-1"}}
	err = inTransaction(ctx, db, func(tx *gorm.DB) error { return stock.Rollback(ctx, tx, late, stock.Options{}) })
	fmt.Println(errors.Is(err, stock.ErrDeducted), err)
	servers.Show("SELECT amount FROM stock WHERE sku_id = 1001")
	// Output:
	// true request 0: order "order-1": already deducted for good
	// 4
}
