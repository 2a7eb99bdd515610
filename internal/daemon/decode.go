package daemon

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/stock"
)

// What a stock-rollback message may hold.
const (
	maxBodyBytes    = 256 << 10
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
// would change what the message says: a number must be written as an integer; null is no value; a field twice in the
// message or in an item, or a known field in another case, is refused; so is a sku_id twice. Fields it does not know are
// accepted: their values must be JSON at most maxDepth deep, and what they hold is not looked into. An order_sn may
// have any character, control characters included, since it is compared as bytes; a half of a surrogate pair is none.
//
// The error says where and what, for the person who finds the message among the dead letters.
func decode(body []byte) (stock.Request, error) {
	s := scanner{body: body, item: outside}
	if err := s.checkBytes(); err != nil {
		return stock.Request{}, err
	}
	s.space()
	if err := s.object((*scanner).messageField); err != nil {
		return stock.Request{}, err
	}
	s.space()
	if s.at < len(s.body) {
		return stock.Request{}, s.syntax("the end of the body after the message")
	}
	if !s.hasOrder {
		return stock.Request{}, fmt.Errorf("%s is missing", fieldOrderSN)
	}
	if err := checkSKUs(s.request.Items); err != nil {
		return stock.Request{}, err
	}
	return s.request, nil
}

func (s *scanner) messageField(name []byte) error {
	switch string(name) {
	case fieldOrderSN:
		s.field, s.hasOrder = fieldOrderSN, true
		return s.orderSN()
	case fieldReason:
		s.field = fieldReason
		return s.anyString()
	case fieldItems:
		s.field = fieldItems
		return s.items()
	}
	if err := otherCase(name, fieldOrderSN, fieldReason, fieldItems); err != nil {
		return err
	}
	return s.unknown(1)
}

func (s *scanner) orderSN() error {
	if s.peek() != '"' {
		return s.wrong("is not a string")
	}
	raw, escaped, err := s.text()
	if err != nil {
		return err
	}
	if escaped {
		if raw, err = s.unescape(raw); err != nil {
			return err
		}
	}
	if n := len(raw); n == 0 || n > maxOrderSNBytes {
		return fmt.Errorf("%s: has %d bytes, must have 1 to %d", fieldOrderSN, n, maxOrderSNBytes)
	}
	s.request.OrderSN = string(raw)
	return nil
}

func (s *scanner) anyString() error {
	if s.peek() != '"' {
		return s.wrong("is not a string")
	}
	_, _, err := s.text()
	return err
}

// items reads the list. Room for four is one small allocation, enough for most messages.
func (s *scanner) items() error {
	if s.peek() != '[' {
		return s.wrong("is not a list (leave items out to give back everything still reserved)")
	}
	s.request.Items = make([]stock.Item, 0, 4)
	err := s.list(func(s *scanner, i int) error {
		if i == maxItems {
			return fmt.Errorf("%s: more than %d items", fieldItems, maxItems)
		}
		s.item, s.field, s.sku, s.quantity = i, "", 0, 0
		if s.peek() != '{' {
			return s.wrong("is not an object")
		}
		if err := s.object((*scanner).itemField); err != nil {
			return err
		}
		// Neither can be 0 when it was there.
		if s.sku == 0 {
			return fmt.Errorf("items[%d].%s is missing", i, fieldSKU)
		}
		if s.quantity == 0 {
			return fmt.Errorf("items[%d].%s is missing", i, fieldQuantity)
		}
		s.request.Items = append(s.request.Items, stock.Item{SKU: s.sku, Quantity: s.quantity})
		return nil
	})
	s.item = outside
	if err == nil && len(s.request.Items) == 0 {
		return fmt.Errorf("%s: is empty (leave items out to give back everything still reserved)", fieldItems)
	}
	return err
}

func (s *scanner) itemField(name []byte) (err error) {
	switch string(name) {
	case fieldSKU:
		s.field = fieldSKU
		s.sku, err = s.integer(maxSKU)
		return err
	case fieldQuantity:
		s.field = fieldQuantity
		s.quantity, err = s.integer(maxItemQuantity)
		return err
	}
	if err := otherCase(name, fieldSKU, fieldQuantity); err != nil {
		return s.locate(err)
	}
	return s.unknown(3)
}

// integer reads an integer literal from 1 to most: digits only, no sign, fraction, exponent or leading zero.
func (s *scanner) integer(most int64) (int64, error) {
	start, fits := s.at, true
	n := int64(0)
	for s.at < len(s.body) && s.body[s.at]-'0' <= 9 {
		digit := int64(s.body[s.at] - '0')
		if n > (most-digit)/10 {
			fits, n = false, 0
		}
		n = n*10 + digit
		s.at++
	}
	// A number that does not fit goes on being read from 0, so that nothing overflows.
	if s.at == start || !fits || n == 0 || s.body[start] == '0' || strings.IndexByte(endOfValue, s.peek()) < 0 {
		s.at = start
		return 0, s.wrong("is not an integer literal between 1 and " + strconv.FormatInt(most, 10))
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
func checkSKUs(items []stock.Item) error {
	if len(items) > 16 {
		seen := make(map[int64]int, len(items))
		for i, it := range items {
			if first, again := seen[it.SKU]; again {
				return skuTwice(i, first, it.SKU)
			}
			seen[it.SKU] = i
		}
		return nil
	}
	for i, it := range items {
		for first := range i {
			if items[first].SKU == it.SKU {
				return skuTwice(i, first, it.SKU)
			}
		}
	}
	return nil
}

func skuTwice(i, first int, sku int64) error {
	return fmt.Errorf("items[%d].%s: %d is in items[%d] already", i, fieldSKU, sku, first)
}
