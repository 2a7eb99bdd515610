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
func classic(ctx context.Context, c *contest) error {
	o, err := redis.ParseURL(c.cfg.RedisURL)
	if err != nil {
		return fmt.Errorf("read redis's URL: %w", err)
	}
	o.PoolSize = c.workers
	locks := redis.NewClient(o)
	defer locks.Close()
	db, err := openPool(ctx, c.cfg.MySQLDSN, c.workers)
	if err != nil {
		return err
	}
	defer db.Close()
	conn, err := dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	publishing, err := dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return err
	}
	defer publishing.Close()
	return side(c.workers, func() error {
		ch, err := publishing.Channel()
		if err == nil {
			defer ch.Close()
			err = ch.Confirm(false)
		}
		if err != nil {
			return fmt.Errorf("open a channel with confirms: %w", err)
		}
		w := classicWorker{rows{c, db}, locks, ch}
		return c.consume(ctx, conn, classicPrefetch, func(d amqp.Delivery) error {
			return c.settle(d, w.process(context.WithoutCancel(ctx), d))
		})
	})
}

var errHeld = errors.New("somebody else has the lock")

const lockPrefix = "lock:"

func (w classicWorker) process(ctx context.Context, d amqp.Delivery) error {
	m, err := read(d.MessageId, d.RoutingKey, d.Body)
	if err != nil {
		return err
	}
	// The lock is kept after the end until it expires, which saves a round trip.
	const lockTTL = 10 * time.Second
	mine, err := w.redis.SetNX(ctx, lockPrefix+m.key, 1, lockTTL).Result()
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if !mine {
		return errHeld
	}
	attempt, err := w.claim(ctx, m)
	if err != nil {
		return err
	}
	if attempt == 0 {
		w.duplicate.Add(1)
		return nil
	}
	effect := m.effect
	if w.cfg.Handler == config.HandlerSQL {
		effect = m.cancel
	}
	err = transact(ctx, w.db, func(tx *sql.Tx) error { return effect(ctx, tx) })
	if errors.Is(err, errRows) {
		return w.fail(ctx, d, m, attempt, err)
	}
	if err != nil {
		return err
	}
	if err := w.end(ctx, m, attempt, success, ""); err != nil {
		return err
	}
	w.applied.Add(1)
	return nil
}

// fail ends an attempt that failed. Before the message goes on, row and lock let the next attempt in; but a row says
// dead only when its letter is confirmed, else a death in between would lose the letter.
func (w classicWorker) fail(ctx context.Context, d amqp.Delivery, m *message, attempt int, cause error) error {
	queue, last := next(w.cfg, attempt)
	if last {
		if err := w.send(ctx, queue, d, cause); err != nil {
			return err
		}
		if err := w.end(ctx, m, attempt, dead, cause.Error()); err != nil {
			return err
		}
		w.dead.Add(1)
		return nil
	}
	if err := w.end(ctx, m, attempt, failed, cause.Error()); err != nil {
		return err
	}
	if err := w.redis.Del(ctx, lockPrefix+m.key).Err(); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	if err := w.send(ctx, queue, d, cause); err != nil {
		return err
	}
	w.retried.Add(1)
	return nil
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
func (w classicWorker) send(ctx context.Context, queue string, d amqp.Delivery, cause error) error {
	const mandatory, immediate = false, false // the queue is there: who declared the main queue has declared it
	confirm, err := w.copies.PublishWithDeferredConfirmWithContext(ctx, "", queue, mandatory, immediate, amqp.Publishing{
		MessageId: d.MessageId, ContentType: d.ContentType, DeliveryMode: amqp.Persistent, Timestamp: d.Timestamp,
		Type: d.Type, Headers: amqp.Table{"x-error": cause.Error()}, Body: d.Body,
	})
	ok := false
	if err == nil {
		ok, err = confirm.WaitContext(ctx)
	}
	if err != nil || !ok {
		return fmt.Errorf("send %s to %s: confirmed is %v: %w", d.MessageId, queue, ok, err)
	}
	return nil
}

// claim looks the message up and makes its row processing: a new one, or that of a message whose last attempt failed.
// It returns the attempt that begins, or 0 for a message that has come to its end.
func (w classicWorker) claim(ctx context.Context, m *message) (attempt int, err error) {
	status, times, err := w.lookUp(ctx, m)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 1, w.insert(ctx, w.db, m, processing)
	case err != nil:
		return 0, err
	case status == success || status == dead:
		return 0, nil
	case status != failed:
		return 0, fmt.Errorf("message %s is in status %d", m.key, status)
	}
	res, err := w.db.ExecContext(ctx, `UPDATE consumer_log SET consumer_status = 0, consumer_times = consumer_times + 1,
			consumer_timestamp = UTC_TIMESTAMP(6)
		WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 2 AND consumer_times = ?`,
		[]byte(w.cfg.Group), []byte(m.tag), []byte(m.key), times)
	if err := all(res, err, 1); err != nil {
		return 0, fmt.Errorf("claim %s again: %w", m.key, err)
	}
	return times + 1, nil
}
