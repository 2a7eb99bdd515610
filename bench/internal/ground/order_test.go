package ground

import (
	"encoding/json"
	"regexp"
	"testing"
)

func TestOrdersHoldTwoDifferentGoods(t *testing.T) {
	for _, of := range []int64{2, 10, 1000} {
		for n := range int64(20_000) {
			sku1, q1, sku2, q2 := goods(n, of)
			if sku1 == sku2 || min(sku1, sku2) < 1 || max(sku1, sku2) > of || min(q1, q2) < 1 || q1 > 5 || q2 > 3 {
				t.Fatalf("order %d of %d goods holds %d×%d and %d×%d", n, of, q1, sku1, q2, sku2)
			}
		}
	}
}

func TestKeysAreUUIDsAndNeverTheSameTwice(t *testing.T) {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, seed := range []uint64{1, 2, 60} {
		for n := range int64(100_000) {
			k := Key(seed, n)
			if seen[k] || !uuid.MatchString(k) {
				t.Fatalf("key %q of order %d, seed %d: seen before %v", k, n, seed, seen[k])
			}
			seen[k] = true
		}
	}
}

func TestBodyIsWhatTheProductReads(t *testing.T) {
	const want = `{"order_sn":"20261121-00000007","reason":"payment_timeout",` +
		`"items":[{"sku_id":434,"quantity":3},{"sku_id":271,"quantity":2}]}`
	if got := string(body(7, 1000)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAPaddedBodyHasItsSizeAndIsStillRead(t *testing.T) {
	plain := body(7, 1000)
	for _, size := range []int{256 << 10, 200} {
		var got struct {
			Items []struct {
				SKU int64 `json:"sku_id"`
			} `json:"items"`
			Note string `json:"note"`
		}
		large := padded(plain, size)
		err := json.Unmarshal(large, &got)
		if err != nil || len(large) != size || len(got.Items) != 2 || got.Items[0].SKU != 434 {
			t.Errorf("%d bytes, want %d: %v, %+v", len(large), size, err, got.Items)
		}
	}
	if got := padded(plain, 0); string(got) != string(plain) {
		t.Errorf("without a size a body is %s", got)
	}
}
