package stock

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// Reservation is a row of stock_reservation as it stands.
type Reservation struct {
	OrderSN   string    `json:"order_sn"`
	SKU       int64     `json:"sku_id"` // 0: a refusal of the whole order
	Quantity  int64     `json:"quantity"`
	Status    string    `json:"status"` // reserved, released, deducted or refused
	UpdatedAt time.Time `json:"since"`  // by the database's clock
	// Tag and Key name the message that released or refused it. Named says that the row has a key at all.
	Tag   string        `json:"rollback_tag,omitempty"`
	Key   string        `json:"rollback_key,omitempty"`
	Named bool          `json:"-"`
	Age   time.Duration `json:"-"` // since UpdatedAt
}

// The words of Reservation.Status.
var (
	Reserved = reserved.String()
	Released = released.String()
	Deducted = deducted.String()
	Refused  = refused.String()
)

const reservationColumns = "SELECT order_sn, sku_id, quantity, status, rollback_tag, rollback_key" +
	", TIMESTAMPDIFF(MICROSECOND, '1970-01-01', updated_at), TIMESTAMPDIFF(MICROSECOND, updated_at, UTC_TIMESTAMP(6))" +
	" FROM stock_reservation FORCE INDEX (PRIMARY)"

// ReservationsOf reads the rows of an order, in order of sku_id. It locks nothing.
func ReservationsOf(ctx context.Context, db *gorm.DB, orderSN string) ([]Reservation, error) {
	return reservationsOf(ctx, db, orderSN, "")
}

// LockReservationsOf is [ReservationsOf] inside the caller's transaction, which then holds the rows.
func LockReservationsOf(ctx context.Context, tx *gorm.DB, orderSN string) ([]Reservation, error) {
	return reservationsOf(ctx, tx, orderSN, " FOR UPDATE")
}

func reservationsOf(ctx context.Context, db *gorm.DB, orderSN, lock string) ([]Reservation, error) {
	s := session{pool: db.Statement.ConnPool}
	s.text(reservationColumns + " WHERE order_sn = ")
	s.binary(orderSN)
	s.text(" ORDER BY sku_id" + lock)
	found, err := s.reservations(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the reservations of order %q: %w", orderSN, err)
	}
	return found, nil
}

// Reservations reads a page of rows that come after the given one in the order of the primary key; the zero Reservation
// stands before all. It locks nothing. A page shorter than limit is the last.
func Reservations(ctx context.Context, db *gorm.DB, after Reservation, limit int) ([]Reservation, error) {
	s := session{pool: db.Statement.ConnPool}
	s.text(reservationColumns)
	if after.OrderSN != "" {
		// A comparison of pairs would scan the table.
		s.text(" WHERE order_sn >= ")
		s.binary(after.OrderSN)
		s.text(" AND (order_sn > ")
		s.binary(after.OrderSN)
		s.text(" OR sku_id > ")
		s.number(after.SKU)
		s.text(")")
	}
	s.text(" ORDER BY order_sn, sku_id LIMIT ")
	s.number(int64(limit))
	found, err := s.reservations(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %d reservations after order %q: %w", limit, after.OrderSN, err)
	}
	return found, nil
}

func (s *session) reservations(ctx context.Context) (found []Reservation, err error) {
	var order, tag, key octets
	var sku, quantity, st, at, age integer
	err = s.query(ctx, func() error {
		found = append(found, Reservation{
			OrderSN: string(order), SKU: int64(sku), Quantity: int64(quantity), Status: status(st).String(),
			Tag: string(tag), Key: string(key), Named: key != nil,
			UpdatedAt: time.UnixMicro(int64(at)).UTC(), Age: time.Duration(age) * time.Microsecond,
		})
		return nil
	}, &order, &sku, &quantity, &st, &tag, &key, &at, &age)
	return found, err
}

// Negative lists skus, at most so many, whose amount is below 0. No statement of this package makes one, and the column
// forbids it unless somebody took its check away.
func Negative(ctx context.Context, db *gorm.DB, most int) ([]int64, error) {
	s := session{pool: db.Statement.ConnPool}
	s.text("SELECT sku_id FROM stock WHERE amount < 0 ORDER BY sku_id LIMIT ")
	s.number(int64(most))
	var skus []int64
	var sku integer
	err := s.query(ctx, func() error { skus = append(skus, int64(sku)); return nil }, &sku)
	if err != nil {
		return nil, fmt.Errorf("look for amounts below 0: %w", err)
	}
	return skus, nil
}
