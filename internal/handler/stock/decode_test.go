package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/rollbackd/rollbackd/internal/strictjson"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/golden"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const documented = `{"order_sn":"20261121-0001","reason":"payment_timeout","items":[{"sku_id":1001,"quantity":2}]}`

// Each message of testdata/decode.txt is read, or refused for its own reason, in words for the person who finds it
// among the dead letters: these stand below it. -update rewrites them.
func TestDecodeReadsMessagesAndRefusesBadOnes(t *testing.T) {
	golden.Says(t, "testdata/decode.txt", func(text string) string {
		switch r, err := decode([]byte(text)); {
		case err != nil:
			return "refused: " + err.Error()
		case r.Items == nil:
			return fmt.Sprintf("order %q, whatever is reserved", r.OrderSN)
		default:
			return fmt.Sprintf("order %q, %v", r.OrderSN, r.Items)
		}
	})
}

func TestDecodeReadsTheLargestMessage(t *testing.T) {
	got := require.Get(decode(message(maxItems)))(t)
	assert.That(t, len(got.Items) == maxItems && got.Items[999] == (stock.Item{SKU: 1000, Quantity: 1}),
		"%d items, the last is %v", len(got.Items), got.Items[len(got.Items)-1])
	_, err := decode(message(maxItems + 1))
	assert.Has(t, fmt.Sprint(err), "items: more than 1000 items", "one item more")
}

// The hot path: the string and the list of the result. Under -race a sync.Pool loses every fourth reader, on purpose.
func TestDecodeAllocatesLittle(t *testing.T) {
	body := message(2)
	assert.AtMost(t, testing.AllocsPerRun(100, func() { _, _ = decode(body) }), 8, "allocations")
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		documented, `{"order_sn":"a"}`, `{"order\u005fsn":"\ud83d\ude00\n","x":[1,-0.5e+3,null,true,{"a":{}}]}`,
		`{"items":[{"quantity":1000000000,"sku_id":9223372036854775807,"gift":null},` +
			`{"sku_id":1,"quantity":1}],"order_sn":"é"}`,
		`{"order_sn":"a","Items":[]}`, `{"order_sn":"a","items":[{"sku_id":1,"quantity":1.0}]}`, documented + documented,
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
		require.OK(t, json.Unmarshal(body, &want)) // else it accepts what encoding/json refuses
		require.That(t, got.OrderSN == want.OrderSN && len(got.Items) == len(want.Items) &&
			(got.Items == nil) == (want.Items == nil), "read %+v, encoding/json %+v", got, want)
		for i, it := range got.Items {
			require.That(t, it.SKU == want.Items[i].SKU && it.Quantity == want.Items[i].Quantity,
				"item %d is %+v, of encoding/json %+v", i, it, want.Items[i])
			require.That(t, it.SKU >= 1 && it.Quantity >= 1 && it.Quantity <= maxItemQuantity, "item %d is %+v", i, it)
		}
		n := len(got.OrderSN)
		require.That(t, n >= 1 && n <= maxOrderSNBytes && len(body) <= strictjson.MaxBytes && len(got.Items) <= maxItems,
			"accepted %d bytes of order_sn, %d items, body of %d", n, len(got.Items), len(body))
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
