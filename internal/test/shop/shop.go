// Package shop is a made-up shop for tests, demo, bench and chaos runs: goods, orders that have reserved some of them,
// and the messages that give them back, all from one seed, so that a run can be repeated. Nothing of the product may
// live here, and the binary never links it.
package shop

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// Order is one order with what it has reserved.
type Order struct {
	SN    string
	Items []stock.Item // one to three, of different skus, in order of sku
}

// Orders makes n orders of 1 to 5 pieces of 1 to 3 of the skus 1 to skus (at least 3); their numbers begin with prefix.
func Orders(rng *rand.Rand, prefix string, n, skus int) []Order {
	orders := make([]Order, n)
	for i := range orders {
		first, step := rng.IntN(skus), 1+rng.IntN(max(1, skus/3))
		o := Order{SN: fmt.Sprintf("%s-%06d", prefix, i)}
		for j := range 1 + rng.IntN(3) {
			sku := first + j*step
			if sku >= skus {
				break
			}
			o.Items = append(o.Items, stock.Item{SKU: int64(sku + 1), Quantity: int64(1 + rng.IntN(5))})
		}
		orders[i] = o
	}
	return orders
}

// Key is the key of the order's rollback message.
func (o Order) Key() string { return "rollback-" + o.SN }

// Body is what the order's rollback message says.
func (o Order) Body() []byte {
	var items []string
	for _, it := range o.Items {
		items = append(items, fmt.Sprintf(`{"sku_id":%d,"quantity":%d}`, it.SKU, it.Quantity))
	}
	return fmt.Appendf(nil, `{"order_sn":%q,"reason":"payment_timeout","items":[%s]}`, o.SN, strings.Join(items, ","))
}

// Route is where producers publish to.
type Route struct{ Exchange, Key string }

// Message is a message with this key and body, on its way to r.
func (r Route) Message(key string, body []byte) rabbit.Publishing {
	return rabbit.Publishing{Exchange: r.Exchange, Key: r.Key, Message: rabbit.Message{
		MessageID: key, Body: body, ContentType: "application/json", DeliveryMode: rabbit.Persistent,
	}}
}

// Rollback is the message that gives the order's goods back. Nothing is wrong with it.
func (r Route) Rollback(o Order) oracle.Sent {
	return oracle.Sent{Publishing: r.Message(o.Key(), o.Body()), Fate: oracle.ToBeApplied(), Order: o.SN}
}

// Rollbacks are the messages of all orders.
func (r Route) Rollbacks(orders []Order) []oracle.Sent {
	sent := make([]oracle.Sent, len(orders))
	for i, o := range orders {
		sent[i] = r.Rollback(o)
	}
	return sent
}

// Repeat adds a second copy of share of the messages and shuffles all of them, as a producer does that sends again what
// it is not sure of.
func Repeat(rng *rand.Rand, sent []oracle.Sent, share float64) []oracle.Sent {
	all := append([]oracle.Sent(nil), sent...)
	for _, i := range rng.Perm(len(sent))[:int(share*float64(len(sent)))] {
		all = append(all, sent[i])
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// Stock puts amount pieces of each of the skus 1 to skus on stock.
func Stock(ctx context.Context, db *sql.DB, skus int, amount int64) error {
	var rows []string
	for i := range skus {
		rows = append(rows, fmt.Sprintf("(%d,%d)", i+1, amount))
	}
	return must.Catch(func() { insert(ctx, db, "INSERT INTO stock (sku_id, amount) VALUES ", rows) })
}

// SeedReserved writes the orders' reservations as they are after package stock has made them. It is for runs that need
// so many that making them one by one would take longer than the run; the stock must hold what the orders have taken.
func SeedReserved(ctx context.Context, db *sql.DB, orders []Order) error {
	var rows []string
	taken := map[int64]int64{}
	for _, o := range orders {
		for _, it := range o.Items {
			rows = append(rows, fmt.Sprintf("(x'%x',%d,%d,1)", o.SN, it.SKU, it.Quantity))
			taken[it.SKU] += it.Quantity
		}
	}
	return must.Catch(func() {
		insert(ctx, db, "INSERT INTO stock_reservation (order_sn, sku_id, quantity, status) VALUES ", rows)
		for sku, n := range taken {
			must.Exec(ctx, db, fmt.Sprintf("UPDATE stock SET amount = amount - %d WHERE sku_id = %d", n, sku))
		}
	})
}

// insert runs head with rows, so many at a time that a statement stays well below every server's packet limit.
func insert(ctx context.Context, db *sql.DB, head string, rows []string) {
	const atOnce = 1000
	for some := range slices.Chunk(rows, atOnce) {
		must.Exec(ctx, db, head+strings.Join(some, ","))
	}
}

// Publish publishes the messages in their order, many at a time, and writes all answers into the ledger. It stops at
// the first one that was not confirmed. progress, if not nil, is told how many are confirmed.
func Publish(
	ctx context.Context, p *rabbit.Publisher, l *oracle.Ledger, sent []oracle.Sent, progress func(confirmed int),
) error {
	const atOnce = 1000
	done := 0
	for some := range slices.Chunk(sent, atOnce) {
		open, err := l.Publish(ctx, p, some)
		done += len(some) - len(open)
		if err != nil {
			return fmt.Errorf("publish %d messages, %d are confirmed: %w", len(sent), done, err)
		}
		if progress != nil {
			progress(done)
		}
	}
	return nil
}

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
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return cmp.Or(s.place(ctx, tx, 0), errAbandoned) })
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
	if errors.Is(err, stock.ErrReleased) { // the money came when the goods had gone back; the order is open
		s.InTime = false
		return nil
	}
	if err == nil {
		s.Status = status
	}
	return err
}
