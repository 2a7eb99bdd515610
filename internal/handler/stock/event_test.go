package stock

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/stock"
)

// The event is as its document shows it, and a rollback that gives back the same, should it come to that queue.
func TestTheEventIsAsDocumented(t *testing.T) {
	text := require.Get(os.ReadFile("../../../docs/events/stock.released.json"))(t)
	var schema struct{ Examples []json.RawMessage }
	require.OK(t, json.Unmarshal(text, &schema))
	event := released{"20261121-0001", []quantityOf{{1001, 2}}, identity{"order.cancelled", "20261121-0001"}}
	body, err := json.Marshal(event)
	assert.That(t, err == nil && string(body) == string(schema.Examples[0]),
		"the body is\n%s (%v)\nthe document's example is\n%s", body, err, schema.Examples[0])
	if r, err := decode(body); err != nil || r.OrderSN != event.OrderSN || len(r.Items) != 1 || r.Items[0].Quantity != 2 {
		t.Errorf("as a rollback it is %+v, %v", r, err)
	}
}

func TestEveryMessageHasAnEventKeyOfItsOwn(t *testing.T) {
	long := strings.Repeat("k", maxEventKey)
	seen := map[string]string{}
	for _, m := range [][2]string{
		{"t", "k"}, {"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {"a", "b%2Fc"}, {"t", long}, {"t", long[1:] + "l"},
		{"é", "é"},
	} {
		key, name := eventKey(m[0], m[1]), m[0]+" and "+m[1]
		if other, taken := seen[key]; taken || len(key) > maxEventKey || key != eventKey(m[0], m[1]) {
			t.Errorf("%s has the key %q of %d bytes, as has %q", name, key, len(key), other)
		}
		seen[key] = name
	}
	assert.Is(t, eventKey("order.cancelled", "20261121-0001"), "order.cancelled/20261121-0001", "a short one")
}

// An order of more goods than a message of the outbox can name has several events, each with a key of its own.
func TestEventsOfManyGoodsFitIntoTheOutbox(t *testing.T) {
	items := make([]stock.Item, 9000)
	for i := range items {
		items[i] = stock.Item{SKU: maxSKU - int64(len(items)-i), Quantity: maxItemQuantity}
	}
	r := &stock.Request{OrderSN: strings.Repeat("<", 64), Tag: strings.Repeat("<", 100), Key: strings.Repeat("\x01", 255)}
	var told []quantityOf
	keys := map[string]bool{eventKey("t", "k"): true}
	for _, e := range eventsOf(r, items) {
		assert.OK(t, e.Validate())
		told, keys[e.Key] = append(told, e.Value.(released).Items...), true
	}
	assert.That(t, len(told) == len(items) && told[8999] == quantityOf(items[8999]) && len(keys) == 4,
		"%d of %d goods are told under the keys %v", len(told), len(items), keys)
}
