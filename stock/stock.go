package stock

import (
	"embed"
	"fmt"
	"io/fs"
	"math"
	"slices"
)

// Item is a quantity of one sku.
type Item struct {
	SKU      int64 // 1 to 2^63-1
	Quantity int64 // 1 to 2^31-1, what the column holds
}

// Request asks for what one message gives back.
type Request struct {
	OrderSN string // 1 to 64 bytes
	// Items are to be given back, each sku once and with exactly the reserved quantity. Nil means everything that is
	// still reserved for the order; empty and not nil is invalid.
	Items []Item
	// Tag (at most 100 bytes) and Key (at most 255) name the message; the rows it releases or refuses keep them.
	Tag, Key string
}

// EmptyPolicy says what a rollback does about reservations that it does not find: it overtook its deduction, or there
// was none.
type EmptyPolicy uint8

const (
	// Retry blames the request with [ErrNoReservation], not permanently: the deduction may still come.
	Retry EmptyPolicy = iota
	// Refuse writes a refused reservation, so that the late deduction is refused with [ErrRefused]. A rollback without
	// items marks its order in any case, also when it found reservations to release: every later one is refused.
	Refuse
)

// String is the policy's word in the configuration.
func (p EmptyPolicy) String() string {
	switch p {
	case Retry:
		return "retry"
	case Refuse:
		return "refuse"
	}
	return fmt.Sprintf("EmptyPolicy(%d)", uint8(p))
}

// Options of a [Rollback].
type Options struct {
	Empty EmptyPolicy
	// Others releases what the requests name that can take effect although others cannot, where that is known before
	// anything was written: see [BatchError].
	Others bool
	// Released, if set, is told what a Rollback has released once all of it is written: each request, by its index, that
	// released something, with its items in order of sku. It holds when the caller commits.
	Released func(request int, items []Item)
}

// status of a reservation row, as stored.
type status int8

const (
	reserved status = 1
	released status = 2
	deducted status = 3
	refused  status = 4
)

var statusWords = [...]string{reserved: "reserved", released: "released", deducted: "deducted", refused: "refused"}

// String is the status as documented.
func (s status) String() string {
	if s < reserved || s > refused {
		return fmt.Sprintf("status %d", int8(s))
	}
	return statusWords[s]
}

// ends are the errors of rows that are not reserved any more.
var ends = map[status]error{released: ErrReleased, deducted: ErrDeducted, refused: ErrRefused}

const (
	// wholeOrder is the sku_id of the row that refuses a whole order: a rollback without items cannot name the skus that
	// may still come. No sku has it.
	wholeOrder = 0

	maxOrderBytes = 64
	maxTagBytes   = 100
	maxKeyBytes   = 255
	maxQuantity   = math.MaxInt32

	// maxAmount bounds the amount that can still be added to. One transaction adds less than 2^62 in all, so the sum
	// stays inside a BIGINT without a second look at each quantity.
	maxAmount = 1 << 62
)

func checkOrder(orderSN string) error {
	if n := len(orderSN); n == 0 || n > maxOrderBytes {
		return fmt.Errorf("%w: order_sn has %d bytes, must have 1 to %d", ErrInvalid, n, maxOrderBytes)
	}
	return nil
}

// checkItems refuses what can never match a row, and a sku named twice.
func checkItems(items []Item) error {
	if len(items) == 0 {
		return fmt.Errorf("%w: no items", ErrInvalid)
	}
	var many map[int64]bool
	if len(items) > fewItems {
		many = make(map[int64]bool, len(items))
	}
	for i, it := range items {
		if it.SKU < 1 {
			return fmt.Errorf("%w: sku %d, must be 1 or more", ErrInvalid, it.SKU)
		}
		if it.Quantity < 1 || it.Quantity > maxQuantity {
			return fmt.Errorf("%w: quantity %d of sku %d, must be 1 to %d", ErrInvalid, it.Quantity, it.SKU, maxQuantity)
		}
		twice := many[it.SKU]
		if many == nil {
			twice = slices.ContainsFunc(items[:i], func(other Item) bool { return other.SKU == it.SKU })
		} else {
			many[it.SKU] = true
		}
		if twice {
			return fmt.Errorf("%w: sku %d is named twice", ErrInvalid, it.SKU)
		}
	}
	return nil
}

// fewItems is up to where comparing each with each is cheaper than a map.
const fewItems = 16

func (r *Request) check() error {
	if err := checkOrder(r.OrderSN); err != nil {
		return err
	}
	if len(r.Tag) > maxTagBytes || len(r.Key) > maxKeyBytes {
		return fmt.Errorf("%w: tag of %d and key of %d bytes, may have %d and %d",
			ErrInvalid, len(r.Tag), len(r.Key), maxTagBytes, maxKeyBytes)
	}
	if r.Items == nil {
		return nil
	}
	return checkItems(r.Items)
}

// MigrationSet is the name under which the versions of [Migrations] are counted in a schema. It never changes.
const MigrationSet = "stock"

//go:embed migrations
var migrationFiles embed.FS

// Migrations are the steps that make the tables stock and stock_reservation, as files for goose. Whoever keeps the
// schema applies them under the name [MigrationSet]; "rollbackd migrate" does.
func Migrations() fs.FS {
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // only a path that is not valid is refused
	}
	return files
}
