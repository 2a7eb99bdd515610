package ground

import (
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/outbox"
)

// events is the queue that events come to.
const events = "bench.events"

// newOutbox leaves nothing of the rounds before in the outbox, which is migrated, and behind it.
func (f *Field) newOutbox() {
	f.exec("TRUNCATE TABLE " + outbox.Table)
	f.ground.onChannel("make queue "+events, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDelete(events, false, false, false); err != nil {
			return err
		}
		if _, err := ch.QueueDeclare(events, true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
			return err
		}
		return ch.QueueBind(events, config.EmitStockReleased, Exchange, false, nil)
	})
}

// checkEvents holds the outbox to the promise: each message that was applied has its event there, or in the queue.
func (f *Field) checkEvents(applied int64) {
	var put, sent int64
	there := func() bool {
		put, sent = value[int64](f, "SELECT COUNT(*) FROM "+outbox.Table), f.ground.depth(events)
		return put+sent >= applied
	}
	if !f.ground.Within(countedWithin, there) || sent == 0 && put != applied {
		broken("%d messages are applied, %d events wait and %d are sent", applied, put, sent)
	}
}

// Messages are so many of the outbox, as the relay would send them: they go into the main queue.
func (f *Field) Messages(n int64) []rabbit.Publishing {
	all := make([]rabbit.Publishing, n)
	for i := range all {
		key := Key(f.sown.seed, int64(i))
		all[i] = rabbit.Publishing{Exchange: Exchange, Key: RoutingKey, Message: rabbit.Message{
			MessageID: key, Type: RoutingKey, ContentType: "application/json",
			Body: body(int64(i), f.sown.Goods), DeliveryMode: rabbit.Persistent,
			Headers: rabbit.Table{rabbit.HeaderPublishedAt: int64(1_790_000_000_000), "x-message-key": key},
		}}
	}
	return all
}

// Put puts messages into the outbox, many in a transaction.
func (f *Field) Put(all []rabbit.Publishing) {
	const inTransaction = 1000
	for len(all) > 0 {
		n := min(inTransaction, len(all))
		msgs := make([]outbox.Message, n)
		for i, m := range all[:n] {
			msgs[i] = outbox.Message{Tag: m.Type, Key: m.MessageID, Body: m.Body}
		}
		tx := must.Get(f.DB.BeginTx(f.ground.Ctx, nil))
		must.OK(outbox.Put(f.ground.Ctx, tx, msgs...), fmt.Sprintf("put %d messages", n))
		must.OK(tx.Commit())
		all = all[n:]
	}
}
