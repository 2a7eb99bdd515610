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

// lookAtStock goes through all reservations, and at the second look through those of the orders with which something
// was wrong.
//
// It begins with the reservations because they say which message released them, while a success row does not say which
// order it was about: its body is gone. So of those rows only the ones are checked whose key is the order's number.
func (r *reconciling) lookAtStock(ctx context.Context, s *sieve) error {
	if s.before != nil {
		for _, order := range slices.Compact(s.before.orders) { // they come in order
			rows, err := stock.ReservationsOf(ctx, r.DB.WithContext(ctx), order)
			if err == nil {
				err = r.judge(ctx, rows, s)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	groups, err := r.Records.Groups(ctx, maxGroups)
	if err != nil {
		return err
	}
	r.groups = append([]string{r.Group}, groups...)
	if r.tags, err = r.Records.Tags(ctx, r.Group); err != nil {
		return err
	}
	if err := r.lookAtReservations(ctx, s); err != nil {
		return err
	}
	negative, err := stock.Negative(ctx, r.DB.WithContext(ctx), maxNegative)
	for _, sku := range negative { // it is committed, whatever moves
		r.report.Findings = append(r.report.Findings, Finding{Kind: NegativeStock, SKU: sku})
	}
	return err
}

// lookAtReservations judges them page by page, every order whole.
func (r *reconciling) lookAtReservations(ctx context.Context, s *sieve) error {
	var last stock.Reservation
	var rows []stock.Reservation // that are not judged yet
	for {
		began := time.Now()
		page, err := stock.Reservations(ctx, r.DB.WithContext(ctx), last, stockPage)
		if err != nil {
			return err
		}
		r.report.Reservations += len(page)
		r.Progress("reservations", r.report.Reservations)
		rows = append(rows, page...)
		if len(page) < stockPage {
			return r.judge(ctx, rows, s)
		}
		last = page[len(page)-1]
		whole := slices.IndexFunc(rows, func(row stock.Reservation) bool { return row.OrderSN == last.OrderSN })
		if err := r.judge(ctx, rows[:whole], s); err != nil {
			return err
		}
		rows = rows[whole:]
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

// judge finds what is wrong with some orders, whose rows are all there. They were read before the log is: a message's
// release and its success row become visible together.
func (r *reconciling) judge(ctx context.Context, rows []stock.Reservation, s *sieve) error {
	orders := map[string][]stock.Reservation{}
	var keys []dedup.Identity
	for _, row := range rows {
		orders[row.OrderSN] = append(orders[row.OrderSN], row)
		keys = append(keys, r.about(row)...)
	}
	slices.SortFunc(keys, dedup.Identity.Compare)
	known, err := r.Records.LookUp(ctx, slices.Compact(keys))
	if err != nil {
		return err
	}
	for _, row := range rows {
		f := r.judgeOne(row, orders[row.OrderSN], known, s)
		switch most := r.Bounds.Findings; {
		case f.Kind == "":
		case most > 0 && s.before == nil && len(s.orders) >= most:
			r.unclear(fmt.Sprintf("over %d reservations disagree; the others were not looked at a second time: the "+
				"command compares all", most))
		default:
			r.add(s, f)
			s.orders = append(s.orders, f.Order)
		}
	}
	return nil
}

// about are the messages of which a row speaks: the one that it names, in whatever group, ours first; and, while it is
// reserved, those whose key is the order's number.
func (r *reconciling) about(row stock.Reservation) (all []dedup.Identity) {
	switch {
	case row.Named && (row.Tag == "" || row.Key == "" || slices.Contains(r.Except, row.Tag)): // no message of ours has it
	case row.Named:
		for _, group := range r.groups {
			all = append(all, dedup.Identity{Group: group, Tag: row.Tag, Key: row.Key})
		}
	case row.Status == stock.Reserved:
		for _, tag := range r.tags {
			all = append(all, dedup.Identity{Group: r.Group, Tag: tag, Key: row.OrderSN})
		}
	}
	return all
}

// judgeOne is what is wrong with a row, of no kind when nothing is.
func (r *reconciling) judgeOne(
	row stock.Reservation, order []stock.Reservation, known map[dedup.Identity]dedup.Row, s *sieve,
) (f Finding) {
	about := r.about(row)
	if len(about) == 0 || coveredByReleases(row, order) {
		return f
	}
	// What was reserved after a success is another matter.
	by := slices.IndexFunc(about, func(id dedup.Identity) bool {
		return known[id].Status == dedup.Success && (row.Named || row.UpdatedAt.Before(known[id].At.Add(time.Minute)))
	})
	applied, message := by >= 0, known[about[max(0, by)]]
	switch {
	case row.Named && row.Status != stock.Released && row.Status != stock.Refused:
		f = aboutRow(NamedNotReleased, message)
		f.SKU, f.Items = row.SKU, []Item{{row.SKU, row.Quantity}}
	case row.Named && !applied && r.Retention > 0 && row.Age > r.Retention-slack:
		if s.before == nil {
			r.report.TooOld++
		}
		return f
	case row.Named && !applied:
		f = aboutRow(ReleasedWithoutSuccess, message)
	case !row.Named && applied && !r.partly(order):
		f = aboutRow(SuccessNotReleased, message)
		f.Items = reservedOf(order)
	default:
		return f
	}
	f.Order, f.Was = row.OrderSN, row.Status
	return f
}

// partly reports whether some message released or refused a part of the order: what is reserved beside that was left
// alone by a message with items, also by one whose items another message had released before it. One that refused the
// order as a whole left nothing alone.
func (r *reconciling) partly(order []stock.Reservation) bool {
	return slices.ContainsFunc(order, func(row stock.Reservation) bool {
		return row.Named && len(r.about(row)) > 0 && row.Status != stock.Reserved && row.SKU != wholeOrder
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
