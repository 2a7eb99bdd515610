package daemon_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
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

// classicConsumer is the classic algorithm, one message at a time: a look into the table, a row in processing, the
// stock in a transaction, the row in success, the ack.
type classicConsumer struct {
	db  *sql.DB
	sub *rabbit.Subscription
}

// classic starts one on a queue. Its stop lets it finish what it has in hand.
func (w *world) classic(queue string) (stop func()) {
	w.t.Helper()
	conn := require.Get(rabbit.Dial(w.t.Context(), rabbit.Config{URLs: []string{w.broker.URL}, Name: "classic"}))(w.t)
	c := &classicConsumer{w.db, require.Get(conn.Consume(w.t.Context(), queue, "classic", 20))(w.t)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.run(ctx) }() // joined by stop
	stop = sync.OnceFunc(func() {
		cancel()
		assert.OK(w.t, errors.Join(<-ended, c.sub.Close(), conn.Close()), "the classic consumer:")
	})
	w.t.Cleanup(stop)
	return stop
}

func (c *classicConsumer) run(ctx context.Context) error {
	for {
		got, err := c.sub.Collect(ctx, 1, 0, nil)
		if ctx.Err() != nil && len(got) == 0 {
			return nil
		}
		if err == nil {
			err = c.process(context.WithoutCancel(ctx), got[0])
		}
		if err == nil {
			err = c.sub.Ack(got[0].Tag, false)
		}
		if err != nil {
			return err
		}
	}
}

func (c *classicConsumer) process(ctx context.Context, d rabbit.Delivery) error {
	tag, key := cmp.Or(d.Type, d.RoutingKey), d.MessageID // a message that was moved back has its tag in Type
	const its = " WHERE group_name = ? AND msg_tag = ? AND msg_key = ?"
	var status int
	err := c.db.QueryRowContext(ctx, "SELECT consumer_status FROM trade_mq_consumer_log"+its, classicGroup, tag, key).
		Scan(&status)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = c.db.ExecContext(ctx, "INSERT INTO trade_mq_consumer_log VALUES (?, ?, ?, ?, ?, 0, 1, UTC_TIMESTAMP(), '')",
			key, classicGroup, tag, key, string(d.Body))
	}
	if err != nil || status == 1 {
		return err
	}
	if err := c.apply(ctx, d.Body); err != nil {
		return err
	}
	_, err = c.db.ExecContext(ctx, "UPDATE trade_mq_consumer_log SET consumer_status = 1, consumer_timestamp = "+
		"UTC_TIMESTAMP()"+its+" AND consumer_status = 0", classicGroup, tag, key)
	return err
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
