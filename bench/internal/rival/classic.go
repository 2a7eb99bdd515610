package rival

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// classicPrefetch keeps every worker's next message at hand; 1, 2 and 100 took no less CPU for a message.
const classicPrefetch = 20

// classicWorker is one of them. They share the connections to all servers; each has channels of its own.
type classicWorker struct {
	rows
	redis  *redis.Client
	copies *amqp.Channel // with confirms
}

// classic is the algorithm with trade_mq_consumer_log as it stands in the books, one message at a time in each worker:
// a lock in Redis, a look at the log, a row in processing, the effect in a transaction, the row in success, the ack.
// When the effect cannot be made, the row is failed, the lock released, and a confirmed copy goes to a retry queue;
// after the last attempt it goes to the dead-letter queue and the row is dead. Copies have a connection of their own,
// as RabbitMQ advises: one that publishes may be blocked.
func classic(ctx context.Context, c *contest) {
	o := must.Get(redis.ParseURL(c.cfg.RedisURL))
	o.PoolSize = c.workers
	locks := redis.NewClient(o)
	defer locks.Close()
	db := openPool(ctx, c.cfg.MySQLDSN, c.workers)
	defer db.Close()
	publishing := must.Get(amqp.Dial(c.cfg.AMQPURLs[0]))
	defer publishing.Close()
	c.side(ctx, c.workers, classicPrefetch, func() func(amqp.Delivery) error {
		ch := must.Get(publishing.Channel())
		must.OK(ch.Confirm(false))
		w := classicWorker{rows{c, db}, locks, ch}
		return c.settling(func(d amqp.Delivery) { w.process(context.WithoutCancel(ctx), d) })
	})
}

var errHeld = errors.New("somebody else has the lock")

const lockPrefix = "lock:"

func (w classicWorker) process(ctx context.Context, d amqp.Delivery) {
	m := read(d.MessageId, d.RoutingKey, d.Body)
	// The lock is kept after the end until it expires, which saves a round trip.
	const lockTTL = 10 * time.Second
	if mine := must.Get(w.redis.SetNX(ctx, lockPrefix+m.key, 1, lockTTL).Result()); !mine {
		must.OK(errHeld)
	}
	attempt := w.claim(ctx, m)
	if attempt == 0 {
		w.duplicate.Add(1)
		return
	}
	err := transact(ctx, w.db, func(tx *sql.Tx) error { return m.effect(ctx, tx) })
	if errors.Is(err, errRows) {
		w.fail(ctx, d, m, attempt, err)
		return
	}
	must.OK(err)
	w.end(ctx, m, attempt, success, "")
	w.applied.Add(1)
}

// fail ends an attempt that failed. Before the message goes on, row and lock let the next attempt in; but a row says
// dead only when its letter is confirmed, else a death in between would lose the letter.
func (w classicWorker) fail(ctx context.Context, d amqp.Delivery, m *message, attempt int, cause error) {
	queue, last := next(w.cfg, attempt)
	if last {
		w.send(ctx, queue, d, cause)
		w.end(ctx, m, attempt, dead, cause.Error())
		w.dead.Add(1)
		return
	}
	w.end(ctx, m, attempt, failed, cause.Error())
	must.OK(w.redis.Del(ctx, lockPrefix+m.key).Err(), "unlock")
	w.send(ctx, queue, d, cause)
	w.retried.Add(1)
}

// next is the queue that a message goes to whose attempt has failed: the retry queue of the next delay, or after the
// last attempt the dead-letter queue. Delays, attempts and queues are the product's: the queues have a TTL and
// dead-letter into the main queue.
func next(cfg config.Config, attempt int) (queue string, dead bool) {
	if attempt >= cfg.MaxAttempts {
		return rabbit.DeadQueue(cfg.Queue), true
	}
	return rabbit.RetryQueue(cfg.Queue, cfg.RetryDelays[attempt-1]), false
}

// send puts a copy of the delivery into a queue and waits until the broker has confirmed it: only then may the delivery
// be acked. What failed stands in a header, for whoever looks at the dead letter.
func (w classicWorker) send(ctx context.Context, queue string, d amqp.Delivery, cause error) {
	const mandatory, immediate = false, false // the queue is there: who declared the main queue has declared it
	confirm, err := w.copies.PublishWithDeferredConfirmWithContext(ctx, "", queue, mandatory, immediate, amqp.Publishing{
		MessageId: d.MessageId, ContentType: d.ContentType, DeliveryMode: amqp.Persistent, Timestamp: d.Timestamp,
		Type: d.Type, Headers: amqp.Table{"x-error": cause.Error()}, Body: d.Body,
	})
	must.OK(err)
	if !must.Get(confirm.WaitContext(ctx)) {
		must.OK(fmt.Errorf("%s is not confirmed in %s", d.MessageId, queue))
	}
}

// claim looks the message up and makes its row processing: a new one, or that of a message whose last attempt failed.
// It returns the attempt that begins, or 0 for a message that has come to its end.
func (w classicWorker) claim(ctx context.Context, m *message) (attempt int) {
	status, times, there := w.lookUp(ctx, m)
	switch {
	case !there:
		must.OK(w.insert(ctx, w.db, m, processing))
		return 1
	case status == success || status == dead:
		return 0
	case status != failed:
		must.OK(fmt.Errorf("message %s is in status %d", m.key, status))
	}
	res, err := w.db.ExecContext(ctx, `UPDATE consumer_log SET consumer_status = 0, consumer_times = consumer_times + 1,
			consumer_timestamp = UTC_TIMESTAMP(6)
		WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 2 AND consumer_times = ?`,
		[]byte(w.cfg.Group), []byte(m.tag), []byte(m.key), times)
	must.OK(all(res, err, 1))
	return times + 1
}
