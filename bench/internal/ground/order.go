package ground

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// The orders of a round are numbered from 0. What order n holds follows from n alone, so that SQL makes the
// reservations on the server and Go the messages, without either telling the other:
//
//	order_sn   20261121-00000123
//	items      two different goods, spread evenly; 1 to 5 pieces of the first, 1 to 3 of the second
//	key        a UUID in no order, as producers make them
const orderPrefix = "20261121-"

const (
	orderDigits = 8
	// Primes, so that neighbours hold different goods.
	step1, step2 = 7919, 104_729
)

// goods is what order n holds of a shop with so many goods.
func goods(n, of int64) (sku1, quantity1, sku2, quantity2 int64) {
	a := n * step1 % of
	b := (a + 1 + n*step2%(of-1)) % of
	return a + 1, n%5 + 1, b + 1, n/5%3 + 1
}

// sqlGoods are the same two items, in SQL over a column n.
func sqlGoods(of int64) (sku1, quantity1, sku2, quantity2 string) {
	a := fmt.Sprintf("(n*%d MOD %d)", step1, of)
	b := fmt.Sprintf("((%s+1+(n*%d MOD %d)) MOD %d)", a, step2, of-1, of)
	return a + "+1", "(n MOD 5)+1", b + "+1", "((n DIV 5) MOD 3)+1"
}

// sqlOrder is order_sn, in SQL over a column n.
var sqlOrder = fmt.Sprintf("CONCAT('%s', LPAD(n, %d, '0'))", orderPrefix, orderDigits)

// body is what a shop's service publishes for order n.
func body(n, of int64) []byte {
	sku1, q1, sku2, q2 := goods(n, of)
	return fmt.Appendf(make([]byte, 0, 160), `{"order_sn":"%s","reason":"payment_timeout",`+
		`"items":[{"sku_id":%d,"quantity":%d},{"sku_id":%d,"quantity":%d}]}`, OrderSN(n), sku1, q1, sku2, q2)
}

// OrderSN is order n's order_sn.
func OrderSN(n int64) string { return fmt.Sprintf("%s%0*d", orderPrefix, orderDigits, n) }

// padded makes a body so large, with a field that nobody reads; one that is larger stays as it is.
func padded(body []byte, size int) []byte {
	const before, after = `,"note":"`, `"}`
	pad := size - len(body) - len(before) - len(after) + 1
	if pad < 0 {
		return body
	}
	return slices.Concat(body[:len(body)-1], []byte(before), bytes.Repeat([]byte("x"), pad), []byte(after))
}

// Key is the key of order n's message in the round with this seed: a UUID of version 4.
func Key(seed uint64, n int64) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, fmt.Appendf(nil, "%d %d", seed, n), 4).String()
}
