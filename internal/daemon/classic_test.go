package daemon_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// The shop that the classic consumer works in, as the literature has it.
const (
	classicGroup  = "order_cancel_group"
	classicTables = "CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT UNSIGNED NOT NULL) " +
		"ENGINE=InnoDB;" +
		"CREATE TABLE trade_mq_consumer_log (msg_id VARCHAR(50) DEFAULT NULL, group_name VARCHAR(100) NOT NULL, " +
		"msg_tag VARCHAR(100) NOT NULL, msg_key VARCHAR(100) NOT NULL, msg_body VARCHAR(500) DEFAULT NULL, " +
		"consumer_status INT(1) DEFAULT NULL, consumer_times INT(1) DEFAULT NULL, " +
		"consumer_timestamp TIMESTAMP NULL DEFAULT NULL, remark VARCHAR(500) DEFAULT NULL, " +
		"PRIMARY KEY (group_name, msg_tag, msg_key)) ENGINE=InnoDB CHARSET=utf8"
)

// classicConsumer is the classic algorithm, one message at a time: a lock by SETNX, a look into the table, a row in
// processing, the stock in a transaction, the row in success, the ack.
type classicConsumer struct {
	db    *sql.DB
	redis *redis.Client
	sub   *rabbit.Subscription
	conn  *rabbit.Conn
	wg    sync.WaitGroup
	errs  chan error
}

// classic starts one on a queue. Its stop lets it finish what it has in hand.
func (w *world) classic(queue string) (stop func()) {
	w.t.Helper()
	options, err := redis.ParseURL(w.env["REDIS_URL"])
	if err != nil {
		w.t.Fatal(err)
	}
	c := &classicConsumer{db: w.db, redis: redis.NewClient(options), errs: make(chan error, 1)}
	c.conn, err = rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "classic"})
	if err != nil {
		w.t.Fatal(err)
	}
	if c.sub, err = c.conn.Consume(w.t.Context(), queue, "classic", 20); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	c.wg.Go(func() { c.errs <- c.run(ctx) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			c.wg.Wait()
			if err := errors.Join(<-c.errs, c.sub.Close(), c.conn.Close(), c.redis.Close()); err != nil {
				w.t.Errorf("the classic consumer: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

func (c *classicConsumer) run(ctx context.Context) error {
	for {
		got, err := c.sub.Collect(ctx, 1, 0, nil)
		if ctx.Err() != nil && len(got) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		d := got[0]
		done, err := c.process(context.WithoutCancel(ctx), d)
		if err != nil {
			return err
		}
		if !done {
			err = c.sub.Requeue(d.Tag, false) // somebody else has the lock
		} else {
			err = c.sub.Ack(d.Tag, false)
		}
		if err != nil {
			return err
		}
	}
}

func (c *classicConsumer) process(ctx context.Context, d rabbit.Delivery) (done bool, err error) {
	tag, key := d.RoutingKey, d.MessageID
	if d.Type != "" {
		tag = d.Type // as a message that was moved back has it
	}
	lock := "classic:" + tag + ":" + key
	mine, err := c.redis.SetNX(ctx, lock, 1, 10*time.Second).Result()
	if err != nil || !mine {
		return false, err
	}
	defer c.redis.Del(ctx, lock)
	var status int
	err = c.db.QueryRowContext(ctx, "SELECT consumer_status FROM trade_mq_consumer_log WHERE group_name = ? AND "+
		"msg_tag = ? AND msg_key = ?", classicGroup, tag, key).Scan(&status)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		_, err = c.db.ExecContext(ctx, "INSERT INTO trade_mq_consumer_log VALUES (?, ?, ?, ?, ?, 0, 1, UTC_TIMESTAMP(), '')",
			key, classicGroup, tag, key, string(d.Body))
	case err == nil && status == 1:
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if err := c.apply(ctx, d.Body); err != nil {
		return false, err
	}
	_, err = c.db.ExecContext(ctx, "UPDATE trade_mq_consumer_log SET consumer_status = 1, consumer_timestamp = "+
		"UTC_TIMESTAMP() WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 0",
		classicGroup, tag, key)
	return true, err
}

func (c *classicConsumer) apply(ctx context.Context, body []byte) error {
	var m struct {
		Items []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	tx, err := c.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after the commit it does nothing
	for _, item := range m.Items {
		if _, err := tx.ExecContext(ctx, "UPDATE tb_stock SET amount = amount + ? WHERE goods_id = ?", item.Quantity,
			item.SKU); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// classicSuccesses counts the successes of the classic table.
func (w *world) classicSuccesses() int {
	w.t.Helper()
	return w.count("SELECT COUNT(*) FROM trade_mq_consumer_log WHERE consumer_status = 1")
}
