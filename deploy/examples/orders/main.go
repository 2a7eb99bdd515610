// Command orders is a shop's order service, as an example of package outbox: an order that is not paid in time, or is
// cancelled, gives its goods back. Its tables are orders.sql, those of `rollbackd migrate`, and the outbox of
// `rollbackd migrate --outbox`; `rollbackd relay` beside it sends what it puts.
//
//	ORDERS_DSN='shop:shop@tcp(127.0.0.1:3306)/shop' go run ./deploy/examples/orders place 1 7 2
//	ORDERS_DSN='shop:shop@tcp(127.0.0.1:3306)/shop' go run ./deploy/examples/orders pay 1
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// errTooLate says that an order is not open any more, or that its goods went back.
var errTooLate = errors.New("too late")

type shop struct {
	db      *gorm.DB
	timeout time.Duration // how long an order may be unpaid
}

// rollback is the message that gives back what the order has reserved.
func rollback(tag, order string, delay time.Duration) outbox.Message {
	return outbox.Message{Tag: tag, Key: order, Delay: delay, Value: map[string]string{"order_sn": order, "reason": tag}}
}

// place opens an order. The message for its timeout is there if the order is, and only then.
func (s shop) place(ctx context.Context, order string, items ...stock.Item) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO orders (order_sn) VALUES (?)", order).Error; err != nil {
			return err
		}
		if err := stock.Reserve(ctx, tx, order, items); err != nil {
			return err
		}
		return outbox.Put(ctx, tx.Statement.ConnPool, rollback("order.timeout", order, s.timeout))
	})
}

// pay takes the money. Whether the timeout was first, the reservation says: Confirm refuses what went back.
func (s shop) pay(ctx context.Context, order string) error {
	return s.end(ctx, order, "paid", func(tx *gorm.DB) error { return stock.Confirm(ctx, tx, order) })
}

// cancel gives the goods back at once.
func (s shop) cancel(ctx context.Context, order string) error {
	return s.end(ctx, order, "cancelled", func(tx *gorm.DB) error {
		return outbox.Put(ctx, tx.Statement.ConnPool, rollback("order.cancelled", order, 0))
	})
}

// end changes an open order, takes its timeout back, and does the rest, in one transaction.
func (s shop) end(ctx context.Context, order, status string, rest func(tx *gorm.DB) error) error {
	return s.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		changed := tx.Exec("UPDATE orders SET status = ? WHERE order_sn = ? AND status = 'open'", status, order)
		if changed.Error != nil || changed.RowsAffected == 0 {
			return errors.Join(changed.Error, fmt.Errorf("order %s: %w", order, errTooLate))
		}
		// Not in time is no error: the message does nothing to an order whose goods went back, or were confirmed.
		if _, err := outbox.Cancel(ctx, tx.Statement.ConnPool, "order.timeout", order); err != nil {
			return err
		}
		return rest(tx)
	})
}

func main() {
	db, err := gorm.Open(mysql.Open(os.Getenv("ORDERS_DSN")))
	if err != nil {
		log.Fatal(err)
	}
	s, ctx := shop{db, 30 * time.Minute}, context.Background()
	switch args := os.Args[1:]; {
	case len(args) == 4 && args[0] == "place":
		sku, err1 := strconv.ParseInt(args[2], 10, 64)
		quantity, err2 := strconv.ParseInt(args[3], 10, 64)
		if err = errors.Join(err1, err2); err == nil {
			err = s.place(ctx, args[1], stock.Item{SKU: sku, Quantity: quantity})
		}
	case len(args) == 2 && args[0] == "pay":
		err = s.pay(ctx, args[1])
	case len(args) == 2 && args[0] == "cancel":
		err = s.cancel(ctx, args[1])
	default:
		err = errors.New("usage: orders place ORDER SKU QUANTITY | pay ORDER | cancel ORDER")
	}
	if err != nil {
		log.Fatal(err)
	}
}
