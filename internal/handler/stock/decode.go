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
	if err := d.message(body); err != nil {
		return stock.Request{}, d.locate(err)
	}
	return d.request, nil
}

// outside is decoder.item while no item is being read.
const outside = -1

// decoder reads one message. It knows where it is, for errors.
type decoder struct {
	json    strictjson.Scanner
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

func (d *decoder) message(body []byte) (err error) {
	if d.json, err = strictjson.New(body); err != nil {
		return err
	}
	var message strictjson.Object
	for {
		name, more, err := d.json.Field(&message)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if err := d.messageField(name); err != nil {
			return err
		}
		d.field = ""
	}
	if err := d.json.End(); err != nil {
		return err
	}
	if d.request.OrderSN == "" {
		return errors.New(fieldOrderSN + " is missing")
	}
	return d.checkSKUs()
}

func (d *decoder) messageField(name []byte) error {
	switch string(name) {
	case fieldOrderSN:
		d.field = fieldOrderSN
		return d.orderSN()
	case fieldReason:
		d.field = fieldReason
		if d.json.Peek() != '"' {
			return d.json.Refuse("is not a string")
		}
	case fieldItems:
		d.field = fieldItems
		return d.items()
	default:
		if err := otherCase(name, fieldOrderSN, fieldReason, fieldItems); err != nil {
			return err
		}
	}
	return d.json.Skip()
}

func (d *decoder) orderSN() error {
	if d.json.Peek() != '"' {
		return d.json.Refuse("is not a string")
	}
	text, err := d.json.Text()
	if err != nil {
		return err
	}
	if n := len(text); n == 0 || n > maxOrderSNBytes {
		return fmt.Errorf("has %d bytes, must have 1 to %d", n, maxOrderSNBytes)
	}
	d.request.OrderSN = string(text)
	return nil
}

// items reads the list. Room for four is one small allocation, enough for most messages.
func (d *decoder) items() error {
	if d.json.Peek() != '[' {
		return d.json.Refuse("is not a list (leave items out to give back everything still reserved)")
	}
	d.request.Items = make([]stock.Item, 0, 4)
	for i := 0; ; i++ {
		more, err := d.json.Element(i)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		if i == maxItems {
			d.item, d.field = outside, fieldItems
			return fmt.Errorf("more than %d items", maxItems)
		}
		d.item, d.field = i, ""
		it, err := d.readItem()
		if err != nil {
			return err
		}
		d.request.Items = append(d.request.Items, it)
	}
	d.item, d.field = outside, fieldItems
	if len(d.request.Items) == 0 {
		return errors.New("is empty (leave items out to give back everything still reserved)")
	}
	return nil
}

func (d *decoder) readItem() (it stock.Item, err error) {
	if d.json.Peek() != '{' {
		return it, d.json.Refuse("is not an object")
	}
	var fields strictjson.Object
	for {
		name, more, err := d.json.Field(&fields)
		if err != nil {
			return it, err
		}
		if !more {
			break
		}
		if err := d.itemField(name, &it); err != nil {
			return it, err
		}
		d.field = ""
	}
	// Neither can be 0 when it was there.
	switch {
	case it.SKU == 0:
		return it, errors.New(fieldSKU + " is missing")
	case it.Quantity == 0:
		return it, errors.New(fieldQuantity + " is missing")
	}
	return it, nil
}

func (d *decoder) itemField(name []byte, it *stock.Item) (err error) {
	switch string(name) {
	case fieldSKU:
		d.field = fieldSKU
		it.SKU, err = d.integer(maxSKU)
		return err
	case fieldQuantity:
		d.field = fieldQuantity
		it.Quantity, err = d.integer(maxItemQuantity)
		return err
	}
	if err := otherCase(name, fieldSKU, fieldQuantity); err != nil {
		return err
	}
	return d.json.Skip()
}

func (d *decoder) integer(most int64) (int64, error) {
	n, ok := d.json.Natural(most)
	if !ok {
		return 0, d.json.Refuse("is not an integer literal between 1 and " + strconv.FormatInt(most, 10))
	}
	return n, nil
}

// otherCase refuses a name that encoding/json would take for a known one, so that no reader of the message disagrees.
func otherCase(name []byte, known ...string) error {
	for _, k := range known {
		if bytes.EqualFold(name, []byte(k)) {
			return fmt.Errorf("field %q must be written %q", name, k)
		}
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
