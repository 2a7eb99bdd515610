package ground

import (
	"bytes"
	"fmt"
	"strconv"
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

func appendOrder(buf []byte, n int64) []byte {
	buf = append(buf, orderPrefix...)
	digits := strconv.FormatInt(n, 10)
	for range orderDigits - len(digits) {
		buf = append(buf, '0')
	}
	return append(buf, digits...)
}

// body is what a shop's service publishes for order n.
func body(n, of int64) []byte {
	sku1, q1, sku2, q2 := goods(n, of)
	b := appendOrder(append(make([]byte, 0, 160), `{"order_sn":"`...), n)
	b = strconv.AppendInt(append(b, `","reason":"payment_timeout","items":[{"sku_id":`...), sku1, 10)
	b = strconv.AppendInt(append(b, `,"quantity":`...), q1, 10)
	b = strconv.AppendInt(append(b, `},{"sku_id":`...), sku2, 10)
	b = strconv.AppendInt(append(b, `,"quantity":`...), q2, 10)
	return append(b, "}]}"...)
}

// padded makes a body so large, with a field that nobody reads; one that is larger stays as it is.
func padded(body []byte, size int) []byte {
	const before, after = `,"note":"`, `"}`
	pad := size - len(body) - len(before) - len(after) + 1
	if pad < 0 {
		return body
	}
	b := append(make([]byte, 0, size), body[:len(body)-1]...)
	b = append(append(b, before...), bytes.Repeat([]byte("x"), pad)...)
	return append(b, after...)
}

// Key is the key of order n's message in the round with this seed: a UUID of version 4.
func Key(seed uint64, n int64) string {
	a := mix(seed<<40 ^ uint64(n)<<1)
	b := mix(seed<<40 ^ uint64(n)<<1 ^ 1)
	hex := make([]byte, 0, 36)
	for i, part := range []struct {
		bits   uint64
		digits int
	}{{a >> 32, 8}, {a >> 16, 4}, {4<<12 | a&0xfff, 4}, {8<<12 | b>>52, 4}, {b, 12}} {
		if i > 0 {
			hex = append(hex, '-')
		}
		for d := part.digits - 1; d >= 0; d-- {
			hex = append(hex, "0123456789abcdef"[part.bits>>(4*d)&15])
		}
	}
	return string(hex)
}

// mix is splitmix64: every input bit changes half of the output's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
