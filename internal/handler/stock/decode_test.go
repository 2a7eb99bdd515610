package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

const golden = `{"order_sn":"20261121-0001","reason":"payment_timeout","items":[{"sku_id":1001,"quantity":2}]}`

func TestDecodeReadsMessages(t *testing.T) {
	one := []stock.Item{{SKU: 1001, Quantity: 2}}
	tests := []struct {
		name, body string
		want       stock.Request
	}{
		{"the documented one", golden, stock.Request{OrderSN: "20261121-0001", Items: one}},
		{"no items: everything still reserved", `{"order_sn":"a"}`, stock.Request{OrderSN: "a"}},
		{"space everywhere", " \t\r\n{ \"order_sn\" : \"a\" , \"items\" : [ { \"sku_id\" : 1001 , \"quantity\" : 2 } ] } \n",
			stock.Request{OrderSN: "a", Items: one}},
		{"fields in another order", `{"items":[{"quantity":2,"sku_id":1001}],"order_sn":"a"}`,
			stock.Request{OrderSN: "a", Items: one}},
		{
			"unknown fields of every kind",
			`{"x":[],"y":{},"z":[1,-0.5e+3,null,true,false,"\u00e9",{"a":1,"b":{"a":2}}],` +
				`"order_sn":"a","items":[{"sku_id":1001,"quantity":2,"price":19.90,"gift":null}]}`,
			stock.Request{OrderSN: "a", Items: one},
		},
		{
			"the largest numbers", `{"order_sn":"a","items":[{"sku_id":9223372036854775807,"quantity":1000000000}]}`,
			stock.Request{OrderSN: "a", Items: []stock.Item{{SKU: 9223372036854775807, Quantity: 1e9}}},
		},
		{"escapes", `{"order_sn":"\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00\u0000"}`,
			stock.Request{OrderSN: "\"\\/\b\f\n\r\té€😀\x00"}},
		{"an escaped name", `{"order\u005fsn":"a"}`, stock.Request{OrderSN: "a"}},
		{"any characters", `{"order_sn":"訂單 é 😀 <script>"}`, stock.Request{OrderSN: "訂單 é 😀 <script>"}},
		{"64 bytes", `{"order_sn":"` + strings.Repeat("é", 32) + `"}`, stock.Request{OrderSN: strings.Repeat("é", 32)}},
		{"names that only begin alike", `{"order_sn":"a","order":1,"order_sn2":2,"item":3}`, stock.Request{OrderSN: "a"}},
		{"more fields than the set has room for", `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"order_sn":"a"}`,
			stock.Request{OrderSN: "a"}},
		{"the deepest unknown field", `{"order_sn":"a","x":` + nested(strictjson.MaxDepth-1) + `}`,
			stock.Request{OrderSN: "a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := require.Get(decode([]byte(test.body)))(t)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestDecodeReadsTheLargestMessage(t *testing.T) {
	got := require.Get(decode(message(maxItems)))(t)
	if len(got.Items) != maxItems || got.Items[999] != (stock.Item{SKU: 1000, Quantity: 1}) {
		t.Errorf("%d items, the last is %v", len(got.Items), got.Items[len(got.Items)-1])
	}
}

// Each bad message is refused for its own reason, in words for the person who finds it among the dead letters.
func TestDecodeRefusesBadMessages(t *testing.T) {
	items := func(s string) string { return `{"order_sn":"a","items":` + s + `}` }
	quantity := func(s string) string { return items(`[{"sku_id":1,"quantity":` + s + `}]`) }
	sku := func(s string) string { return items(`[{"sku_id":` + s + `,"quantity":1}]`) }
	const noQuantity = ` is not an integer literal between 1 and 1000000000`
	const noSKU = ` is not an integer literal between 1 and 9223372036854775807`
	tests := []struct{ name, body, want string }{
		{"empty body", "", "the body is empty"},
		{"truncated", golden[:40], "reason: byte 40: want the end of a string, found the end"},
		{"null", "null", "byte 0: want a JSON object, found 'n'"},
		{"empty object", "{}", "order_sn is missing"},
		{"array", "[" + golden + "]", "byte 0: want a JSON object, found '['"},
		{"two documents", golden + golden, "byte 94: want the end of the body after the message, found '{'"},
		{"byte order mark", "\xef\xbb\xbf" + golden, "the body begins with a byte order mark"},
		{"gzip", "\x1f\x8b\x08\x00", "the body is not UTF-8: byte 1"},

		{"order_sn missing", `{"items":[{"sku_id":1,"quantity":1}]}`, "order_sn is missing"},
		{"order_sn null", `{"order_sn":null}`, "order_sn: null is not a string"},
		{"order_sn a number", `{"order_sn":20261121}`, "order_sn: 20261121 is not a string"},
		{"order_sn empty", `{"order_sn":""}`, "order_sn: has 0 bytes, must have 1 to 64"},
		{"order_sn too long", `{"order_sn":"` + strings.Repeat("é", 32) + `a"}`, "order_sn: has 65 bytes, must have 1 to 64"},
		{"order_sn twice", `{"order_sn":"a","order_sn":"b"}`, `byte 16: field "order_sn" comes twice`},
		{"order_sn in another case", `{"Order_SN":"a"}`, `field "Order_SN" must be written "order_sn"`},
		{"items in another case", `{"order_sn":"a","ITEMS":[]}`, `field "ITEMS" must be written "items"`},
		{"a letter that folds to s", `{"order_sn":"a","item\u017f":[]}`, `field "itemſ" must be written "items"`},
		{"a field twice where nobody looks", `{"order_sn":"a","x":[{"b":1,"\u0062":2}]}`, `byte 28: field "b" comes twice`},
		{"reason a number", `{"order_sn":"a","reason":7}`, "reason: 7 is not a string"},
		{"reason in another case", `{"order_sn":"a","Reason":"x"}`, `field "Reason" must be written "reason"`},

		{"items null", items("null"), "items: null is not a list (leave items out to give back everything still reserved)"},
		{"items an object", items(`{"sku_id":1}`), `items: {"sku_id":1} is not a list (leave items out to give back ` +
			`everything still reserved)`},
		{"items empty", items("[]"), "items: is empty (leave items out to give back everything still reserved)"},
		{"1,001 items", string(message(maxItems + 1)), "items: more than 1000 items"},
		{"an item null", items("[null]"), "items[0]: null is not an object"},
		{"an item a list", items("[[1,1]]"), "items[0]: [1,1] is not an object"},
		{"an item empty", items("[{}]"), "items[0]: sku_id is missing"},
		{"sku_id missing", items(`[{"sku_id":1,"quantity":1},{"quantity":1}]`), "items[1]: sku_id is missing"},
		{"quantity missing", items(`[{"sku_id":1,"quantity":1},{"sku_id":2}]`), "items[1]: quantity is missing"},
		{"quantity in another case", items(`[{"sku_id":1,"Quantity":1}]`), `items[0]: field "Quantity" must be written ` +
			`"quantity"`},
		{"a sku twice", items(`[{"sku_id":7,"quantity":1},{"sku_id":8,"quantity":1},{"sku_id":7,"quantity":2}]`),
			"items[2].sku_id: 7 is in items[0] already"},
		{"a sku twice among many", strings.Replace(string(message(20)), `"sku_id":20,`, `"sku_id":1,`, 1),
			"items[19].sku_id: 1 is in items[0] already"},

		{"quantity 0", quantity("0"), "items[0].quantity: 0" + noQuantity},
		{"quantity negative", quantity("-1"), "items[0].quantity: -1" + noQuantity},
		{"quantity 1.0", quantity("1.0"), "items[0].quantity: 1.0" + noQuantity},
		{"quantity 1e3", quantity("1e3"), "items[0].quantity: 1e3" + noQuantity},
		{"quantity a string", quantity(`"1"`), `items[0].quantity: "1"` + noQuantity},
		{"quantity null", quantity("null"), "items[0].quantity: null" + noQuantity},
		{"quantity a list", quantity("[1]"), "items[0].quantity: [1]" + noQuantity},
		{"quantity over a billion", quantity("1000000001"), "items[0].quantity: 1000000001" + noQuantity},
		{"quantity above int64", quantity("9223372036854775808"), "items[0].quantity: 9223372036854775808" + noQuantity},
		{"quantity of 60 digits", quantity(strings.Repeat("1", 60)), "items[0].quantity: " + strings.Repeat("1", 40) + "…" +
			noQuantity},
		{"quantity without a value", `{"order_sn":"a","items":[{"quantity":`, "items[0].quantity: byte 37: want a value, " +
			"found the end"},
		{"sku_id 0", sku("0"), "items[0].sku_id: 0" + noSKU},
		{"sku_id above int64", sku("9223372036854775808"), "items[0].sku_id: 9223372036854775808" + noSKU},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := decode([]byte(test.body))
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			assert.Is(t, err.Error(), test.want, "error %s", err)
		})
	}
}

// The hot path: the string and the list of the result. Under -race a sync.Pool loses every fourth reader, on purpose.
func TestDecodeAllocatesLittle(t *testing.T) {
	body := message(2)
	assert.AtMost(t, testing.AllocsPerRun(100, func() { _, _ = decode(body) }), 8, "allocations")
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		golden, `{"order_sn":"a"}`, `{"order\u005fsn":"\ud83d\ude00\n","x":[1,-0.5e+3,null,true,{"a":{}}]}`,
		`{"items":[{"quantity":1000000000,"sku_id":9223372036854775807,"gift":null},` +
			`{"sku_id":1,"quantity":1}],"order_sn":"é"}`,
		`{"order_sn":"a","Items":[]}`, `{"order_sn":"a","items":[{"sku_id":1,"quantity":1.0}]}`, golden + golden,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := decode(body)
		if err != nil {
			assert.AtMost(t, len(err.Error()), 500, "the error has bytes")
			return
		}
		// What decode reads, encoding/json reads alike: it only refuses more.
		var want struct {
			OrderSN string `json:"order_sn"`
			Reason  *string
			Items   []struct {
				SKU      int64 `json:"sku_id"`
				Quantity int64
			}
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %v", err)
		}
		if got.OrderSN != want.OrderSN || len(got.Items) != len(want.Items) || (got.Items == nil) != (want.Items == nil) {
			t.Fatalf("read %+v, encoding/json %+v", got, want)
		}
		for i, it := range got.Items {
			if it.SKU != want.Items[i].SKU || it.Quantity != want.Items[i].Quantity {
				t.Fatalf("item %d is %+v, of encoding/json %+v", i, it, want.Items[i])
			}
			if it.SKU < 1 || it.Quantity < 1 || it.Quantity > maxItemQuantity {
				t.Fatalf("item %d is %+v", i, it)
			}
		}
		if n := len(got.OrderSN); n < 1 || n > maxOrderSNBytes || len(body) > strictjson.MaxBytes ||
			len(got.Items) > maxItems {
			t.Fatalf("accepted %d bytes of order_sn, %d items, body of %d", n, len(got.Items), len(body))
		}
	})
}

// message has n items of one piece each: skus 1 to n.
func message(n int) []byte {
	body := bytes.NewBufferString(`{"order_sn":"20261121-0001","reason":"payment_timeout","items":[`)
	for i := range n {
		if i > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(body, `{"sku_id":%d,"quantity":1}`, i+1)
	}
	body.WriteString("]}")
	return body.Bytes()
}

func nested(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
