package stock

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/stock"
)

// What a stock-rollback message may hold.
const (
	maxItems        = 1000
	maxItemQuantity = 1_000_000_000
	maxSKU          = 1<<63 - 1
	maxOrderSNBytes = 64
)

// The fields of a message. Reason is for people; it must be a string and is not kept.
const (
	fieldOrderSN  = "order_sn"
	fieldReason   = "reason"
	fieldItems    = "items"
	fieldSKU      = "sku_id"
	fieldQuantity = "quantity"
)

// decode reads the body of a stock-rollback message: one JSON object such as
//
//	{"order_sn":"20261121-0001","reason":"payment_timeout","items":[{"sku_id":1001,"quantity":2}]}
//
// Without items everything still reserved goes back: Items is nil. It is stricter than encoding/json where leniency
// would change what the message says: besides what internal/strictjson refuses, a number must be written as an integer;
// null is no value; a known field in another case is refused, and so is a sku_id twice. Fields it does not know are
// accepted, whatever JSON they hold. An order_sn may have any character, control characters included, since it is
// compared as bytes.
//
// The error says where and what, for the person who finds the message among the dead letters.
func decode(body []byte) (stock.Request, error) {
	d := decoder{item: outside}
	if err := strictjson.Read(body, d.message); err != nil {
		return stock.Request{}, d.locate(err)
	}
	return d.request, nil
}

// outside is decoder.item while no item is being read.
const outside = -1

// decoder reads one message. It knows where it is, for errors.
type decoder struct {
	request stock.Request
	item    int    // the item being read
	field   string // the known field being read; empty in an unknown one
}

// locate puts before err where in the message it is.
func (d *decoder) locate(err error) error {
	where := d.field
	if d.item != outside {
		where = strings.TrimSuffix("items["+strconv.Itoa(d.item)+"]."+d.field, ".")
	}
	if where == "" {
		return err
	}
	return fmt.Errorf("%s: %w", where, err)
}

func (d *decoder) message(r *strictjson.Reader) error {
	err := r.Fields(func(name []byte) (err error) {
		switch d.field = known(name, fieldOrderSN, fieldReason, fieldItems); d.field {
		case fieldOrderSN:
			err = d.orderSN(r)
		case fieldReason:
			if r.PeekKind() != '"' {
				return r.Refuse("is not a string")
			}
			err = r.SkipValue()
		case fieldItems:
			err = d.items(r)
		default:
			err = skip(r, name, fieldOrderSN, fieldReason, fieldItems)
		}
		return d.leave(err)
	})
	switch {
	case err != nil:
		return err
	case d.request.OrderSN == "":
		return errors.New(fieldOrderSN + " is missing")
	}
	return d.checkSKUs()
}

// known is the field that has this name, or nothing.
func known(name []byte, fields ...string) string {
	for _, f := range fields {
		if string(name) == f {
			return f
		}
	}
	return ""
}

// leave goes out of the field, unless that is where an error is.
func (d *decoder) leave(err error) error {
	if err == nil {
		d.field = ""
	}
	return err
}

// skip steps over a field that nobody knows. It refuses a name that encoding/json would take for a known one, so that
// no reader of the message disagrees.
func skip(r *strictjson.Reader, name []byte, known ...string) error {
	for _, k := range known {
		if bytes.EqualFold(name, []byte(k)) {
			return fmt.Errorf("field %q must be written %q", name, k)
		}
	}
	return r.SkipValue()
}

func (d *decoder) orderSN(r *strictjson.Reader) error {
	if r.PeekKind() != '"' {
		return r.Refuse("is not a string")
	}
	text, err := r.Text()
	if n := len(text); err == nil && (n == 0 || n > maxOrderSNBytes) {
		err = fmt.Errorf("has %d bytes, must have 1 to %d", n, maxOrderSNBytes)
	}
	d.request.OrderSN = string(text)
	return err
}

// items reads the list. Room for four is one small allocation, enough for most messages.
func (d *decoder) items(r *strictjson.Reader) error {
	if r.PeekKind() != '[' {
		return r.Refuse("is not a list (leave items out to give back everything still reserved)")
	}
	d.request.Items = make([]stock.Item, 0, 4)
	err := r.Elements(func(i int) error {
		if i == maxItems {
			return fmt.Errorf("more than %d items", maxItems)
		}
		d.item, d.field = i, ""
		var it stock.Item
		err := d.readItem(r, &it)
		if err == nil {
			d.item, d.field = outside, fieldItems
		}
		d.request.Items = append(d.request.Items, it)
		return err
	})
	if err == nil && len(d.request.Items) == 0 {
		err = errors.New("is empty (leave items out to give back everything still reserved)")
	}
	return err
}

func (d *decoder) readItem(r *strictjson.Reader, it *stock.Item) error {
	if r.PeekKind() != '{' {
		return r.Refuse("is not an object")
	}
	err := r.Fields(func(name []byte) (err error) {
		switch d.field = known(name, fieldSKU, fieldQuantity); d.field {
		case fieldSKU:
			it.SKU, err = r.Natural(maxSKU)
		case fieldQuantity:
			it.Quantity, err = r.Natural(maxItemQuantity)
		default:
			err = skip(r, name, fieldSKU, fieldQuantity)
		}
		return d.leave(err)
	})
	switch { // neither can be 0 when it was there
	case err != nil:
		return err
	case it.SKU == 0:
		return errors.New(fieldSKU + " is missing")
	case it.Quantity == 0:
		return errors.New(fieldQuantity + " is missing")
	}
	return nil
}

// checkSKUs refuses a sku_id named twice: to add up the quantities would be a guess.
func (d *decoder) checkSKUs() error {
	items := d.request.Items
	if len(items) > 16 {
		seen := make(map[int64]int, len(items))
		for i, it := range items {
			if first, again := seen[it.SKU]; again {
				return d.skuTwice(i, first)
			}
			seen[it.SKU] = i
		}
		return nil
	}
	for i, it := range items {
		for first := range i {
			if items[first].SKU == it.SKU {
				return d.skuTwice(i, first)
			}
		}
	}
	return nil
}

func (d *decoder) skuTwice(i, first int) error {
	d.item, d.field = i, fieldSKU
	return fmt.Errorf("%d is in items[%d] already", d.request.Items[i].SKU, first)
}
