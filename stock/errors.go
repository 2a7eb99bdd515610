package stock

import (
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// What can be wrong with a request. The errors returned name the sku and order and wrap one of these.
var (
	// ErrInvalid: the request itself can never match a row.
	ErrInvalid = errors.New("invalid request")
	// ErrQuantity: the quantity differs from the reserved one.
	ErrQuantity = errors.New("quantity differs from the reservation")
	// ErrDeducted: the reservation was deducted for good.
	ErrDeducted = errors.New("already deducted for good")
	// ErrNoReservation: nothing was ever reserved.
	ErrNoReservation = errors.New("no reservation")
	// ErrUnknownSKU: there is no stock row of the sku. None is created.
	ErrUnknownSKU = errors.New("unknown sku")
	// ErrOverflow: the stock row holds so much that no more can be added.
	ErrOverflow = errors.New("amount too large to add to")

	// ErrOutOfStock: less is left than asked for.
	ErrOutOfStock = errors.New("out of stock")
	// ErrRefused: the order's rollback came first, so it must not take goods any more.
	ErrRefused = errors.New("refused, its rollback came first")
	// ErrReleased: the reservation was given back.
	ErrReleased = errors.New("already released")

	// ErrChanged: another transaction added rows between two looks at them, without the locks that this package takes. No
	// request is at fault: roll back and try again.
	ErrChanged = errors.New("another transaction added or removed some rows meanwhile")
	// ErrTables: stock_reservation lacks a column of [Migrations]. No request is at fault.
	ErrTables = errors.New("stock_reservation is older than this program; run: rollbackd migrate")
)

// The server's numbers.
const (
	errDuplicate     = 1062 // a row has the key
	errUnknownColumn = 1054 // a column is not there
)

func hasNumber(err error, number uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && e.Number == number
}

// ofTables adds [ErrTables] to an error that it explains.
func ofTables(err error) error {
	if hasNumber(err, errUnknownColumn) {
		return fmt.Errorf("%w: %w", ErrTables, err)
	}
	return err
}

// permanent reports whether no retry can cure err. A missing reservation or stock row may still come, and a full one
// may be mended.
func permanent(err error) bool {
	return !errors.Is(err, ErrNoReservation) && !errors.Is(err, ErrUnknownSKU) && !errors.Is(err, ErrOverflow)
}

// BatchError says which requests of a [Rollback] are to blame; without them the rest can succeed. The caller must roll
// the transaction back first, unless the others are released.
type BatchError struct {
	Requests []RequestError // at least one, in order of Index, one per request
	// OthersReleased: all requests but these have taken effect in the transaction, which may be committed, and nothing was
	// written for these. It is never so unless [Options] asks for it.
	OthersReleased bool
}

// RequestError is what is wrong with one request.
type RequestError struct {
	Index     int   // into Rollback's requests
	Err       error // wraps one of this package's errors
	Permanent bool  // no retry can cure it
}

// Error describes the first request and counts them.
func (e *BatchError) Error() string {
	first := e.Requests[0]
	if len(e.Requests) == 1 {
		return fmt.Sprintf("request %d: %v", first.Index, first.Err)
	}
	return fmt.Sprintf("%d requests to blame, the first is %d: %v", len(e.Requests), first.Index, first.Err)
}

// Unwrap gives the requests' errors to errors.Is and errors.As.
func (e *BatchError) Unwrap() []error {
	errs := make([]error, len(e.Requests))
	for i, r := range e.Requests {
		errs[i] = r.Err
	}
	return errs
}
