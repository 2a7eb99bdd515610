package stock_test

import (
	"context"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/stock"
)

// giveBack gives back what is still reserved for an order. Without items it is all of it.
func giveBack(ctx context.Context, db *gorm.DB, order string) error {
	request := stock.Request{OrderSN: order, Tag: "order.cancelled", Key: order}
	return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		return stock.Rollback(ctx, tx, []stock.Request{request}, stock.Options{Empty: stock.Retry})
	})
}

// An order is cancelled, twice. Its goods come back once.
func ExampleRollback() {
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

	err = db.Transaction(func(tx *gorm.DB) error {
		return stock.Reserve(ctx, tx, "order-1", []stock.Item{{SKU: 1001, Quantity: 6}})
	})
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT amount FROM stock WHERE sku_id = 1001")
	for range 2 {
		if err := giveBack(ctx, db, "order-1"); err != nil {
			log.Panic(err)
		}
		servers.Show("SELECT amount FROM stock WHERE sku_id = 1001")
	}
	reservations, err := stock.ReservationsOf(ctx, db, "order-1")
	if err != nil {
		log.Panic(err)
	}
	for _, r := range reservations {
		fmt.Println(r.SKU, r.Quantity, r.Status, "by", r.Tag)
	}
	// Output:
	// 4
	// 10
	// 10
	// 1001 6 released by order.cancelled
}
