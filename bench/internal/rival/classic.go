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
)

// classicPrefetch keeps every worker's next message at hand; 1, 2 and 100 took no less CPU for a message.
const classicPrefetch = 20

// classicWorkers share the connections to all servers; each has a channel of its own.
type classicWorkers struct {
	contest
	db    *sql.DB
	redis *redis.Client
}

// classic is the algorithm with trade_mq_consumer_log as it stands in the books, one message at a time in each worker: a
// lock in Redis, a look at the log, a row in processing, the effect in a transaction, the row in success, the ack.
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
	errs := make(chan error, c.workers)
	var wg sync.WaitGroup
	for range c.workers {
		wg.Go(func() {
			if err := w.work(ctx, conn); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func (w classicWorkers) work(ctx context.Context, conn *amqp.Connection) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
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
				w.counts.failed.Add(1)
				fmt.Fprintln(os.Stderr, "classic:", err)
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

func (w classicWorkers) process(ctx context.Context, d amqp.Delivery) error {
	m, err := read(d.MessageId, d.RoutingKey, d.Body)
	if err != nil {
		return err
	}
	// The lock is kept after success until it expires, which saves a round trip.
	const lockTTL = 10 * time.Second
	mine, err := w.redis.SetNX(ctx, "lock:"+m.key, 1, lockTTL).Result()
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if !mine {
		return errHeld
	}
	done, err := w.claim(ctx, m)
	if err != nil {
		return err
	}
	if done {
		w.counts.duplicate.Add(1)
		return nil
	}
	if err := transact(ctx, w.db, func(tx *sql.Tx) error { return m.effect(ctx, tx) }); err != nil {
		return err
	}
	res, err := w.db.ExecContext(ctx, `UPDATE consumer_log SET consumer_status = 1, consumer_timestamp = UTC_TIMESTAMP(6)
		WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 0 AND consumer_times = 1`, []byte(w.cfg.Group), []byte(m.tag), []byte(m.key))
	if err := all(res, err, 1); err != nil {
		return fmt.Errorf("mark %s success: %w", m.key, err)
	}
	w.counts.applied.Add(1)
	return nil
}

// claim looks the message up and inserts it as processing.
func (w classicWorkers) claim(ctx context.Context, m *message) (done bool, err error) {
	var status int
	err = w.db.QueryRowContext(ctx, "SELECT consumer_status FROM consumer_log WHERE group_name = ? AND msg_tag = ? AND msg_key = ?",
		[]byte(w.cfg.Group), []byte(m.tag), []byte(m.key)).Scan(&status)
	switch {
	case err == nil && status == 1:
		return true, nil
	case err == nil:
		return false, fmt.Errorf("message %s is in status %d", m.key, status)
	case !errors.Is(err, sql.ErrNoRows):
		return false, fmt.Errorf("look %s up: %w", m.key, err)
	}
	_, err = w.db.ExecContext(ctx, `INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash, consumer_status, consumer_times, replays, consumer_timestamp, created_at)
		VALUES (?, ?, ?, ?, ?, 0, 1, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`, []byte(w.cfg.Group), []byte(m.tag), []byte(m.key), []byte(m.key), m.hash())
	if err != nil {
		return false, fmt.Errorf("insert %s: %w", m.key, err)
	}
	return false, nil
}
