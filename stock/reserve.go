package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gorm.io/gorm"
)

// Reserve takes items from the stock for an order, all or none, in tx, which the caller commits. Items that are already
// reserved for the order, with the same quantities, are done: no effect and no error, so that a caller may repeat a
// Reserve whose answer was lost.
//
// It fails with [ErrOutOfStock] when less is left of a sku, [ErrUnknownSKU], [ErrRefused] when a rollback of the order
// came first, [ErrReleased] or [ErrDeducted] when an item was reserved before and is not any more, [ErrQuantity] when
// it is reserved with another quantity or only some of the items are, [ErrInvalid]; any other error is the database's.
// After any error the caller must roll back.
func Reserve(ctx context.Context, tx *gorm.DB, orderSN string, items []Item) error {
	if err := errors.Join(checkOrder(orderSN), checkItems(items)); err != nil {
		return fmt.Errorf("reserve for order %q: %w", orderSN, err)
	}
	items = slices.Clone(items)
	sortItems(items)
	s := session{pool: tx.Statement.ConnPool}
	done, err := s.reserve(ctx, orderSN, items)
	if err == nil && !done {
		err = s.take(ctx, items)
	}
	if err != nil {
		return fmt.Errorf("reserve for order %q: %w", orderSN, err)
	}
	return nil
}

// reserve writes the reservations, before it looks whether the order as a whole was refused: a rollback that refuses it
// does the same in the same order, so of the two at most one gets through.
func (s *session) reserve(ctx context.Context, orderSN string, items []Item) (done bool, err error) {
	if inserted, err := s.insertReservations(ctx, orderSN, items); err != nil {
		if !hasNumber(err, errDuplicate) {
			return false, err
		}
		err = s.explainDuplicate(ctx, orderSN, items)
		if err == nil && inserted > 0 { // the rows just found are partly our own, and nothing was taken for them
			err = someReserved(items[0].SKU)
		}
		return true, err
	}
	o, err := s.lockOrder(ctx, orderSN)
	if err != nil {
		return false, err
	}
	if o.find(wholeOrder) != nil {
		return false, ErrRefused
	}
	return false, nil
}

// insertReservations inserts as many rows as a statement takes at a time and returns how many it has inserted, also
// beside an error.
func (s *session) insertReservations(ctx context.Context, orderSN string, items []Item) (inserted int, err error) {
	for chunk := range slices.Chunk(items, maxIn) {
		s.text("INSERT INTO stock_reservation (order_sn, sku_id, quantity, status, updated_at) VALUES ")
		for i, it := range chunk {
			s.row(i, orderSN, it.SKU, it.Quantity)
			s.text(",1,UTC_TIMESTAMP(6))")
		}
		if _, err := s.exec(ctx); err != nil {
			return inserted, fmt.Errorf("insert reservations: %w", err)
		}
		inserted += len(chunk)
	}
	return inserted, nil
}

// explainDuplicate says why reservations exist already; nil when they are the very ones that were asked for.
func (s *session) explainDuplicate(ctx context.Context, orderSN string, items []Item) error {
	o, err := s.lockOrder(ctx, orderSN)
	if err != nil {
		return err
	}
	whole := o.find(wholeOrder) != nil
	for _, it := range items {
		r := o.find(it.SKU)
		switch {
		case r == nil && whole:
			return ErrRefused
		case r == nil:
			return someReserved(it.SKU)
		case ends[r.status] != nil:
			return fmt.Errorf("sku %d: %w", it.SKU, ends[r.status])
		case r.quantity != it.Quantity:
			return fmt.Errorf("sku %d: %w: asked for %d, reserved are %d", it.SKU, ErrQuantity, it.Quantity, r.quantity)
		}
	}
	if whole { // a person reserved it again by hand
		return ErrRefused
	}
	return nil
}

func someReserved(sku int64) error {
	return fmt.Errorf("sku %d: %w: other items of this call are reserved already", sku, ErrQuantity)
}

// lockOrder reads and locks all rows of one order.
func (s *session) lockOrder(ctx context.Context, orderSN string) (*order, error) {
	p := newPlan([]Request{{OrderSN: orderSN}}, Retry)
	if err := s.lockReservations(ctx, p); err != nil {
		return nil, err
	}
	return &p.orders[0], nil
}

// take takes items (sorted, distinct) off the stock. It looks before it takes, with the rows locked, so that it can
// name the sku that is short; the UPDATE compares the amounts all the same.
func (s *session) take(ctx context.Context, items []Item) error {
	for chunk := range slices.Chunk(items, maxIn) {
		amounts, err := s.amounts(ctx, chunk)
		if err != nil {
			return err
		}
		for _, it := range chunk {
			amount, known := amounts[it.SKU]
			switch {
			case !known:
				return fmt.Errorf("sku %d: %w", it.SKU, ErrUnknownSKU)
			case amount < it.Quantity:
				return fmt.Errorf("sku %d: %w: asked for %d, left are %d", it.SKU, ErrOutOfStock, it.Quantity, amount)
			}
		}
		changed, err := s.changeAmounts(ctx, chunk, "-")
		if err != nil {
			return fmt.Errorf("take from the stock: %w", err)
		}
		if changed != len(chunk) {
			return fmt.Errorf("take from the stock of %d skus from %d: %d rows changed", len(chunk), chunk[0].SKU, changed)
		}
	}
	return nil
}
