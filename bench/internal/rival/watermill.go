package rival

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	wmessage "github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// watermillPrefetch keeps every subscription's next message at hand; Watermill's own default of 1, 2 and 100 took no
// less CPU for a message.
const watermillPrefetch = 20

// asDeclared takes the queue as the product declared it.
type asDeclared struct{}

// BuildTopology declares nothing.
func (asDeclared) BuildTopology(*amqp.Channel, wamqp.BuildTopologyParams, wamqp.Config, watermill.LoggerAdapter) error {
	return nil
}

// ExchangeDeclare declares nothing.
func (asDeclared) ExchangeDeclare(*amqp.Channel, string, wamqp.Config) error { return nil }

// byMessageID names messages as our producers do; the default marshaler reads a header of Watermill's own producers and
// copies all others, which costs more.
type byMessageID struct{ wamqp.DefaultMarshaler }

// Unmarshal makes Watermill's message.
func (byMessageID) Unmarshal(d amqp.Delivery) (*wmessage.Message, error) {
	m := wmessage.NewMessage(d.MessageId, d.Body)
	if attempts, ok := d.Headers[attemptsHeader].(string); ok {
		m.Metadata.Set(attemptsHeader, attempts)
	}
	return m, nil
}

// Marshal makes the copy that goes to a retry queue or to the dead-letter queue.
func (byMessageID) Marshal(m *wmessage.Message) (amqp.Publishing, error) {
	headers := amqp.Table{}
	for name, value := range m.Metadata {
		headers[name] = value
	}
	return amqp.Publishing{
		MessageId: m.UUID, ContentType: "application/json", DeliveryMode: amqp.Persistent, Headers: headers, Body: m.Payload,
	}, nil
}

// attemptsHeader counts the attempts that failed: the row of a message that is not applied is rolled back with it.
const attemptsHeader = "x-attempts"

// watermillRival subscribes so many times, each with a channel and a goroutine of its own, without the router, which
// would start a goroutine for each message. Watermill hands a subscription one message at a time. What fails goes to
// the same retry queues as everybody's, by a confirmed publish: Watermill's own Retry middleware would sleep in the
// subscription, which all messages behind it would wait for.
func watermillRival(ctx context.Context, c *contest) {
	db := openPool(ctx, c.cfg.MySQLDSN, c.workers)
	defer db.Close()
	config := wamqp.NewDurableQueueConfig(c.cfg.AMQPURLs[0])
	config.Consume.Qos.PrefetchCount = watermillPrefetch
	config.Marshaler, config.TopologyBuilder = byMessageID{}, asDeclared{}
	subscriber := must.Get(wamqp.NewSubscriber(config, watermill.NopLogger{}))
	config.Publish.ConfirmDelivery, config.Publish.ChannelPoolSize = true, c.workers
	publisher := must.Get(wamqp.NewPublisher(config, watermill.NopLogger{}))
	w := watermillWorker{rows{c, db}, publisher}
	var wg sync.WaitGroup
	for range c.workers {
		messages := must.Get(subscriber.Subscribe(context.WithoutCancel(ctx), c.cfg.Queue))
		wg.Go(func() {
			for {
				select {
				case m, ok := <-messages:
					if !ok {
						return
					}
					w.handle(m)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	wg.Wait()
	// Watermill sends an ack some time after it was told to, and a Close in between sends a nack instead.
	const untilAcked = 300 * time.Millisecond
	time.Sleep(untilAcked)
	must.OK(errors.Join(subscriber.Close(), publisher.Close()))
}

// watermillWorker is what all subscriptions share.
type watermillWorker struct {
	rows
	copies *wamqp.Publisher
}

func (w watermillWorker) handle(m *wmessage.Message) {
	if err := must.Catch(func() { w.process(m) }); err != nil {
		fmt.Fprintln(os.Stderr, "watermill:", err)
		m.Nack()
		return
	}
	m.Ack()
}

// process inserts the deduplication row and makes the effect in one transaction. A row that is there ends a duplicate.
func (w watermillWorker) process(wm *wmessage.Message) {
	ctx := context.Background() // Watermill ends its own when it closes, in the middle of a transaction
	m := read(wm.UUID, tagOfRivals, wm.Payload)
	err := transact(ctx, w.db, func(tx *sql.Tx) error {
		if err := w.insert(ctx, tx, m, success); err != nil {
			return err
		}
		return m.effect(ctx, tx)
	})
	switch {
	case mysqldb.Duplicate(err):
		w.duplicate.Add(1)
	case errors.Is(err, errRows):
		w.fail(wm, err)
	default:
		must.OK(err)
		w.applied.Add(1)
	}
}

// fail sends a copy of a message on whose attempt failed.
func (w watermillWorker) fail(m *wmessage.Message, cause error) {
	attempts, _ := strconv.Atoi(m.Metadata.Get(attemptsHeader)) // none: 0
	attempts++
	onward := wmessage.NewMessage(m.UUID, m.Payload)
	onward.Metadata.Set(attemptsHeader, strconv.Itoa(attempts))
	onward.Metadata.Set("x-error", cause.Error())
	queue, last := next(w.cfg, attempts)
	must.OK(w.copies.Publish(queue, onward))
	if last {
		w.dead.Add(1)
	} else {
		w.retried.Add(1)
	}
}

// tagOfRivals is the tag that the product takes from the routing key, which Watermill does not hand on.
const tagOfRivals = "stock.rollback"
