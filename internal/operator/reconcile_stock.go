package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/stock"
)

const (
	// page is how many reservations are read at a time.
	stockPage = 1000
	// maxGroups bounds the groups in which a release is looked up: several may share the stock.
	maxGroups = 100
	// wholeOrder is the sku of the row that refuses whatever an order reserves later.
	wholeOrder = 0
	// maxNegative bounds the skus that are named.
	maxNegative = 100
	// slack is what the database's clock may have gone on between the statements of one transaction, and between the
	// moment when retention counts a row and the one when it deletes it.
	slack = time.Hour
)

// lookAtStock goes through all reservations.
//
// It begins with the reservations because they say which message released them, while a success row does not say which
// order it was about: its body is gone. So of those rows only the ones are checked whose key is the order's number.
func (r *reconciling) lookAtStock(ctx context.Context, s *sieve) (err error) {
	if r.groups, err = r.Records.Groups(ctx, maxGroups); err != nil {
		return err
	}
	if r.tags, err = r.Records.Tags(ctx, r.Group); err != nil {
		return err
	}
	err = r.orders(ctx, func(orders [][]stock.Reservation) error { return r.judge(ctx, orders, s, &r.report.TooOld) })
	if err != nil {
		return err
	}
	negative, err := stock.Negative(ctx, r.DB.WithContext(ctx), maxNegative)
	if err != nil {
		return err
	}
	for _, sku := range negative { // it is committed, whatever moves
		r.report.Findings = append(r.report.Findings, Finding{Kind: NegativeStock, SKU: sku})
	}
	return nil
}

// confirmStock looks again at the orders with which something was wrong, and keeps what is found twice.
func (r *reconciling) confirmStock(ctx context.Context, s *sieve) error {
	for _, order := range slices.Compact(r.suspects) { // they come in order
		rows, err := stock.ReservationsOf(ctx, r.DB.WithContext(ctx), order)
		if err != nil {
			return err
		}
		if err := r.judge(ctx, [][]stock.Reservation{rows}, s, new(int)); err != nil {
			return err
		}
	}
	r.keep(s)
	return nil
}

// orders calls each with the reservations of some orders at a time, every order whole.
func (r *reconciling) orders(ctx context.Context, each func([][]stock.Reservation) error) error {
	var last stock.Reservation
	var begun []stock.Reservation // the order that the last page may have cut
	for {
		began := time.Now()
		rows, err := stock.Reservations(ctx, r.DB.WithContext(ctx), last, stockPage)
		if err != nil {
			return err
		}
		r.report.Reservations += len(rows)
		r.Progress("reservations", r.report.Reservations)
		end := len(rows) < stockPage
		var orders [][]stock.Reservation
		for _, row := range rows {
			if len(begun) > 0 && begun[0].OrderSN != row.OrderSN {
				orders, begun = append(orders, begun), nil
			}
			begun = append(begun, row)
		}
		if end && len(begun) > 0 {
			orders = append(orders, begun)
		}
		if err := each(orders); err != nil {
			return err
		}
		if end {
			return nil
		}
		last = rows[len(rows)-1]
		if r.Bounds.Time > 0 && time.Since(r.began) > r.Bounds.Time {
			r.unclear(fmt.Sprintf("%d reservations were compared in %v, and there are more: the command compares all",
				r.report.Reservations, r.Bounds.Time))
			return nil
		}
		if r.Bounds.Rest {
			if err := wait.For(ctx, time.Since(began)); err != nil {
				return err
			}
		}
	}
}

// judge finds what is wrong with some orders. Reservations were read before the log is: a message's release and its
// success row become visible together.
func (r *reconciling) judge(ctx context.Context, orders [][]stock.Reservation, s *sieve, tooOld *int) error {
	var keys []dedup.Identity
	for _, order := range orders {
		keys = append(keys, r.keysOf(order)...)
	}
	slices.SortFunc(keys, dedup.Identity.Compare)
	rows, err := r.Records.LookUp(ctx, slices.Compact(keys))
	if err != nil {
		return err
	}
	for _, order := range orders {
		for _, reservation := range order {
			if f, ok := r.judgeOne(reservation, order, rows, tooOld); ok {
				if most := r.Bounds.Findings; most > 0 && s.first == nil && len(r.suspects) >= most {
					r.unclear(fmt.Sprintf("over %d reservations disagree; the others were not looked at a second time: the "+
						"command compares all", most))
					continue
				}
				s.add(f)
				if s.first == nil {
					r.suspects = append(r.suspects, f.Order)
				}
			}
		}
	}
	return nil
}

// keysOf are the identities that an order's rows are about.
func (r *reconciling) keysOf(order []stock.Reservation) (keys []dedup.Identity) {
	for _, row := range order {
		switch {
		case r.isForeign(row):
		case row.Named:
			for _, group := range r.groups {
				keys = append(keys, dedup.Identity{Group: group, Tag: row.Tag, Key: row.Key})
			}
		case row.Status == stock.Reserved:
			for _, tag := range r.tags {
				keys = append(keys, dedup.Identity{Group: r.Group, Tag: tag, Key: row.OrderSN})
			}
		}
	}
	return keys
}

// isForeign: no message of ours can have this name.
func (r *reconciling) isForeign(row stock.Reservation) bool {
	return row.Named && (row.Tag == "" || row.Key == "" || slices.Contains(r.Except, row.Tag))
}

func (r *reconciling) judgeOne(
	row stock.Reservation, order []stock.Reservation, rows map[dedup.Identity]dedup.Row, tooOld *int,
) (f Finding, wrong bool) {
	switch {
	case r.isForeign(row), coveredByReleases(row, order):
	case row.Named && (row.Status == stock.Released || row.Status == stock.Refused):
		by := r.applied(row, rows)
		switch {
		case by.Status == dedup.Success:
		case r.Retention > 0 && row.Age > r.Retention-slack:
			*tooOld++
		default:
			f = aboutRow(ReleasedWithoutSuccess, by)
			f.Order, f.Was = row.OrderSN, row.Status
			return f, true
		}
	case row.Named:
		f = aboutRow(NamedNotReleased, r.applied(row, rows))
		f.Order, f.SKU, f.Was = row.OrderSN, row.SKU, row.Status
		f.Items = []Item{{row.SKU, row.Quantity}}
		return f, true
	case row.Status == stock.Reserved:
		for _, tag := range r.tags {
			by := rows[dedup.Identity{Group: r.Group, Tag: tag, Key: row.OrderSN}]
			// What was reserved after the success is another matter, and so is what a message with items left alone: also one
			// whose items another message had released before it.
			if by.Status == dedup.Success && row.UpdatedAt.Before(by.At.Add(time.Minute)) && !r.partly(order) {
				f = aboutRow(SuccessNotReleased, by)
				f.Order, f.Was, f.Items = row.OrderSN, row.Status, reservedOf(order)
				return f, true
			}
		}
	}
	return f, false
}

// applied is the row of the message that a reservation names: the one in success, in whatever group, else that of ours.
func (r *reconciling) applied(row stock.Reservation, rows map[dedup.Identity]dedup.Row) dedup.Row {
	key := dedup.Identity{Group: r.Group, Tag: row.Tag, Key: row.Key}
	own, ok := rows[key]
	if !ok {
		own = dedup.Row{Identity: key, Version: dedup.Version{Status: dedup.Absent}}
	}
	for _, group := range r.groups {
		if other := rows[dedup.Identity{Group: group, Tag: row.Tag, Key: row.Key}]; other.Status == dedup.Success {
			return other
		}
	}
	return own
}

// partly reports whether some message released or refused a part of the order. One that refused the order as a whole
// left nothing alone.
func (r *reconciling) partly(order []stock.Reservation) bool {
	return slices.ContainsFunc(order, func(row stock.Reservation) bool {
		return row.Named && !r.isForeign(row) && row.Status != stock.Reserved && row.SKU != wholeOrder
	})
}

// coveredByReleases: the row refuses the order as a whole, and what its message released says all that it could say.
func coveredByReleases(row stock.Reservation, order []stock.Reservation) bool {
	return row.SKU == wholeOrder && slices.ContainsFunc(order, func(other stock.Reservation) bool {
		return other.Status == stock.Released && other.Named && other.Tag == row.Tag && other.Key == row.Key
	})
}

func reservedOf(order []stock.Reservation) (items []Item) {
	for _, r := range order {
		if r.Status == stock.Reserved && !r.Named {
			items = append(items, Item{r.SKU, r.Quantity})
		}
	}
	return items
}
