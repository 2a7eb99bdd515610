package rival

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/config"
)

// classicPrefetch keeps every worker's next message at hand; 1, 2 and 100 took no less CPU for a message.
const classicPrefetch = 20

// classicWorkers share the connections to all servers; each has channels of its own.
type classicWorkers struct {
	contest
	db    *sql.DB
	redis *redis.Client
}

// classicWorker is one of them.
type classicWorker struct {
	classicWorkers
	copies *copier
}

// classic is the algorithm with trade_mq_consumer_log as it stands in the books, one message at a time in each worker:
// a lock in Redis, a look at the log, a row in processing, the effect in a transaction, the row in success, the ack.
// When the effect cannot be made, the row is failed, the lock released, and a confirmed copy goes to a retry queue;
// after the last attempt it goes to the dead-letter queue and the row is dead. Copies have a connection of their own,
// as RabbitMQ advises: one that publishes may be blocked.
func classic(ctx context.Context, c contest) error {
	o, err := redis.ParseURL(c.cfg.RedisURL)
	if err != nil {
		return fmt.Errorf("read redis's URL: %w", err)
	}
	o.PoolSize = c.workers
	w := classicWorkers{contest: c, redis: redis.NewClient(o)}
	defer w.redis.Close()
	if w.db, err = openPool(ctx, c.cfg.MySQLDSN, c.workers); err != nil {
		return err
	}
	defer w.db.Close()
	conn, err := amqp.Dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	publishing, err := amqp.Dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return fmt.Errorf("connect to publish: %w", err)
	}
	defer publishing.Close()
	errs := make(chan error, c.workers)
	var wg sync.WaitGroup
	for range c.workers {
		wg.Go(func() {
			if err := w.work(ctx, conn, publishing); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (all classicWorkers) work(ctx context.Context, conn, publishing *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
	w := classicWorker{classicWorkers: all}
	if w.copies, err = newCopier(publishing); err != nil {
		return err
	}
	defer w.copies.ch.Close()
	deliveries, err := consume(ch, w.cfg.Queue, classicPrefetch)
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("consume from %s: it ended", w.cfg.Queue)
			}
			if err := w.process(context.WithoutCancel(ctx), d); err != nil {
				w.counts.abandoned.Add(1)
				if !errors.Is(err, errHeld) { // who has failed keeps the lock for a while, and the message comes again at once
					fmt.Fprintln(os.Stderr, "classic:", err)
				}
				if err := d.Nack(false, true); err != nil {
					return fmt.Errorf("nack: %w", err)
				}
				continue
			}
			if err := d.Ack(false); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
		}
	}
}

var errHeld = errors.New("somebody else has the lock")

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
		w.counts.duplicate.Add(1)
		return nil
	}
	err = transact(ctx, w.db, func(tx *sql.Tx) error { return w.effect(ctx, tx, m) })
	if errors.Is(err, errRows) {
		return w.fail(ctx, d, m, attempt, err)
	}
	if err != nil {
		return err
	}
	if err := w.end(ctx, m, attempt, success, ""); err != nil {
		return err
	}
	w.counts.applied.Add(1)
	return nil
}

// effect is the one of the round's tables.
func (w classicWorker) effect(ctx context.Context, tx *sql.Tx, m *message) error {
	if w.cfg.Handler == config.HandlerSQL {
		return m.cancel(ctx, tx)
	}
	return m.effect(ctx, tx)
}

const lockPrefix = "lock:"

// The values of consumer_status.
const (
	processing = iota
	success
	failed
	dead
)

// fail ends an attempt that failed. Before the message goes on, row and lock let the next attempt in; but a row says
// dead only when its letter is confirmed, else a death in between would lose the letter.
func (w classicWorker) fail(ctx context.Context, d amqp.Delivery, m *message, attempt int, cause error) error {
	queue, last := next(w.cfg, attempt)
	if last {
		if err := w.copies.send(ctx, queue, d, cause); err != nil {
			return err
		}
		if err := w.end(ctx, m, attempt, dead, cause.Error()); err != nil {
			return err
		}
		w.counts.dead.Add(1)
		return nil
	}
	if err := w.end(ctx, m, attempt, failed, cause.Error()); err != nil {
		return err
	}
	if err := w.redis.Del(ctx, lockPrefix+m.key).Err(); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	if err := w.copies.send(ctx, queue, d, cause); err != nil {
		return err
	}
	w.counts.retried.Add(1)
	return nil
}

// end writes how the attempt ended into the row.
func (w classicWorker) end(ctx context.Context, m *message, attempt, status int, remark string) error {
	res, err := w.db.ExecContext(ctx, `UPDATE consumer_log SET consumer_status = ?, remark = ?,
			consumer_timestamp = UTC_TIMESTAMP(6)
		WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 0 AND consumer_times = ?`,
		status, remark, []byte(w.cfg.Group), []byte(m.tag), []byte(m.key), attempt)
	if err := all(res, err, 1); err != nil {
		return fmt.Errorf("end attempt %d of %s in status %d: %w", attempt, m.key, status, err)
	}
	return nil
}

// claim looks the message up and makes its row processing: a new one, or that of a message whose last attempt failed.
// It returns the attempt that begins, or 0 for a message that has come to its end.
func (w classicWorker) claim(ctx context.Context, m *message) (attempt int, err error) {
	var status, times int
	err = w.db.QueryRowContext(ctx, "SELECT consumer_status, consumer_times FROM consumer_log WHERE group_name = ? AND "+
		"msg_tag = ? AND msg_key = ?",
		[]byte(w.cfg.Group), []byte(m.tag), []byte(m.key)).Scan(&status, &times)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 1, w.insert(ctx, m)
	case err != nil:
		return 0, fmt.Errorf("look %s up: %w", m.key, err)
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

// insert makes the row of a message that was never seen before.
func (w classicWorker) insert(ctx context.Context, m *message) error {
	_, err := w.db.ExecContext(ctx,
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash, consumer_status, consumer_times,
			replays, consumer_timestamp, created_at)
		VALUES (?, ?, ?, ?, ?, 0, 1, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`, []byte(w.cfg.Group), []byte(m.tag),
		[]byte(m.key), []byte(m.key), m.hash())
	if err != nil {
		return fmt.Errorf("insert %s: %w", m.key, err)
	}
	return nil
}
