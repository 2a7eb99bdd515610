package stock

import (
	"context"
	"fmt"

	"gorm.io/gorm"
)

// Confirm deducts for good what is reserved for an order, in tx, which the caller commits. From then on a rollback of
// it fails with [ErrDeducted]. An order that is deducted already is done: no effect and no error.
//
// It fails with [ErrReleased] when any item was given back, [ErrRefused] when any was refused, [ErrNoReservation] when
// there is none, [ErrInvalid], [ErrChanged] when a part was reserved meanwhile (try again); any other error is the
// database's. After any error the caller must roll back.
func Confirm(ctx context.Context, tx *gorm.DB, orderSN string) error {
	err := checkOrder(orderSN)
	if err == nil {
		s := session{pool: tx.Statement.ConnPool}
		err = s.confirm(ctx, orderSN)
	}
	if err != nil {
		return fmt.Errorf("confirm order %q: %w", orderSN, err)
	}
	return nil
}

func (s *session) confirm(ctx context.Context, orderSN string) error {
	o, err := s.lockOrder(ctx, orderSN)
	if err != nil {
		return err
	}
	if len(o.rows) == 0 {
		return ErrNoReservation
	}
	open := 0
	for _, r := range o.rows {
		switch {
		case r.status == reserved:
			open++
		case r.status != deducted && r.sku != wholeOrder:
			return fmt.Errorf("sku %d: %w", r.sku, ends[r.status])
		}
	}
	if o.find(wholeOrder) != nil {
		return ErrRefused
	}
	if open == 0 {
		return nil
	}
	s.text("UPDATE stock_reservation FORCE INDEX (PRIMARY) SET status=3, updated_at=UTC_TIMESTAMP(6) WHERE status=1 AND " +
		"order_sn=")
	s.binary(orderSN)
	changed, err := s.exec(ctx)
	if err != nil {
		return fmt.Errorf("deduct %d reservations: %w", open, err)
	}
	if changed != open {
		return fmt.Errorf("deduct %d reservations: %d rows changed: %w", open, changed, ErrChanged)
	}
	return nil
}
