package shop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// How it stands with a [Sale], and the tags of its messages.
const (
	Open      = "open"
	Paid      = "paid"
	Cancelled = "cancelled"

	TagTimeout = "order.timeout"
	TagCancel  = "order.cancelled"
)

// OrdersTable makes the table of the orders of a shop with an outbox.
const OrdersTable = "CREATE TABLE orders (order_sn VARBINARY(64) PRIMARY KEY, status VARCHAR(20) NOT NULL) " +
	"ENGINE=InnoDB"

// Sale is an order as its service knows it: placed with a message for its timeout, then paid, cancelled, or left to
// that. Each step is one transaction, which may be repeated when its answer was lost.
type Sale struct {
	Order
	Status string // Open, Paid or Cancelled
	InTime bool   // the timeout was taken back before a relay had it
	Late   bool   // the money came when the goods had gone back; the order is open
}

// Message is the message that gives the goods back, by its tag, to be sent after wait.
func (s *Sale) Message(tag string, wait time.Duration) outbox.Message {
	body := fmt.Appendf(nil, `{"order_sn":%q,"reason":%q}`, s.SN, tag)
	return outbox.Message{Tag: tag, Key: s.SN, Delay: wait, Body: body}
}

// Place opens the order, by db. The message for its timeout is there if the order is, and only then.
func (s *Sale) Place(ctx context.Context, db *gorm.DB, timeout time.Duration) error {
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return s.place(ctx, tx, timeout) })
	const duplicate = 1062
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok && refused.Number == duplicate {
		return nil // an earlier call, whose answer was lost, has placed it
	}
	return err
}

// Abandon does all that Place does, and rolls it back.
func (s *Sale) Abandon(ctx context.Context, db *gorm.DB) error {
	errAbandoned := errors.New("the customer has left")
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		return cmp.Or(s.place(ctx, tx, 0), errAbandoned)
	})
	if errors.Is(err, errAbandoned) {
		return nil
	}
	return err
}

func (s *Sale) place(ctx context.Context, tx *gorm.DB, timeout time.Duration) error {
	if err := tx.Exec("INSERT INTO orders VALUES (?, 'open')", s.SN).Error; err != nil {
		return err
	}
	if err := stock.Reserve(ctx, tx, s.SN, s.Items); err != nil {
		return err
	}
	return outbox.Put(ctx, tx.Statement.ConnPool, s.Message(TagTimeout, timeout))
}

// End pays or cancels the order, by db, if it is open. Who pays too late has changed nothing.
func (s *Sale) End(ctx context.Context, db *gorm.DB, status string) error {
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		changed := tx.Exec("UPDATE orders SET status = ? WHERE order_sn = ? AND status = 'open'", status, s.SN)
		if changed.Error != nil || changed.RowsAffected == 0 {
			return changed.Error // it was changed by an earlier call, whose answer was lost: what that was told holds
		}
		var err error
		if s.InTime, err = outbox.Cancel(ctx, tx.Statement.ConnPool, TagTimeout, s.SN); err != nil {
			return err
		}
		if status == Paid {
			return stock.Confirm(ctx, tx, s.SN)
		}
		return outbox.Put(ctx, tx.Statement.ConnPool, s.Message(TagCancel, 0))
	})
	if s.Late = errors.Is(err, stock.ErrReleased); s.Late {
		s.InTime = false
		return nil
	}
	if err == nil {
		s.Status = status
	}
	return err
}
