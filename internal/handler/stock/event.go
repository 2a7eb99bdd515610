package stock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

// EventReleased is the event of goods that a message has given back: its tag, and the routing key that it is sent with.
const EventReleased = "stock.released"

// released is the body of the event, as docs/events/stock.released.json says. It has nothing that differs between two
// attempts. Its list has the name and the form of a rollback's: an event that is led back to the queue of rollbacks by
// mistake gives nothing back, since all of it is released.
type released struct {
	OrderSN string       `json:"order_sn"`
	Items   []quantityOf `json:"items"`
	Message identity     `json:"message"`
}

type quantityOf struct {
	SKU      int64 `json:"sku_id"`
	Quantity int64 `json:"quantity"`
}

type identity struct {
	Tag string `json:"tag"`
	Key string `json:"key"`
}

// rollback gives the stock back, and puts an event of each message that released something into the outbox. One that
// finds all of it released has no event: what released it had it, in the same transaction.
func rollback(ctx context.Context, tx *gorm.DB, requests []stock.Request, o stock.Options) error {
	var events []outbox.Message
	o.Released = func(request int, items []stock.Item) {
		events = append(events, eventsOf(&requests[request], items)...)
	}
	err := stock.Rollback(ctx, tx, requests, o)
	if len(events) == 0 {
		return err
	}
	if failed := outbox.Put(ctx, consumer.SQL(tx), events...); failed != nil {
		return failed
	}
	return err
}

// maxEventItems fit into a body, whatever their numbers and the names.
const maxEventItems = 4000

// eventsOf has an event for each so many items. The keys of those behind the first have a dot and no slash.
func eventsOf(r *stock.Request, items []stock.Item) (events []outbox.Message) {
	for some := range slices.Chunk(items, maxEventItems) {
		key := eventKey(r.Tag, r.Key)
		if n := len(events); n > 0 {
			key = fmt.Sprintf("%x.%d", sha256.Sum256([]byte(key)), n+1)
		}
		body := released{r.OrderSN, make([]quantityOf, len(some)), identity{r.Tag, r.Key}}
		for i, it := range some {
			body.Items[i] = quantityOf(it)
		}
		events = append(events, outbox.Message{Tag: EventReleased, Key: key, Value: body, RoutingKey: EventReleased})
	}
	return events
}

// eventKey is another key for every tag and key. One of the two forms has a slash, the other has none.
func eventKey(tag, key string) string {
	name := url.PathEscape(tag) + "/" + key
	if len(name) <= maxEventKey {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

const maxEventKey = 255
