package rival

import (
	"context"
	"database/sql"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// atOnce is how many orders a transaction of the floor changes.
const atOnce = 10_000

// floor is the least that MySQL can do: it writes the rows that the others write, but asks nobody for a message. Each
// statement takes a range of orders, and the server makes the values itself.
func floor(ctx context.Context, c *contest) {
	const key = "LEFT(SHA2(order_sn, 224), 36)" // as long as a UUID, and in no order either
	db := openPool(ctx, c.cfg.MySQLDSN, 1)
	defer db.Close()
	for from, left := int64(0), true; left && ctx.Err() == nil; from += atOnce {
		first, last := ground.OrderSN(from), ground.OrderSN(from+atOnce-1)
		var n int64
		must.OK(transact(ctx, db, func(tx *sql.Tx) error {
			res, err := tx.ExecContext(ctx, `INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash,
					consumer_status, consumer_times, replays, consumer_timestamp, created_at)
				SELECT ?, ?, `+key+", "+key+`, UNHEX(SHA2(order_sn, 256)), 1, 1, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6)
				FROM stock_reservation WHERE order_sn BETWEEN ? AND ? GROUP BY order_sn ORDER BY 3`,
				ground.Group, ground.RoutingKey, first, last)
			if err != nil {
				return err
			}
			if n, err = res.RowsAffected(); err != nil || n == 0 {
				return err
			}
			if _, err = tx.ExecContext(ctx, `UPDATE stock_reservation SET status = 2, rollback_tag = ?, rollback_key = `+key+
				`, room = '', updated_at = UTC_TIMESTAMP(6) WHERE order_sn BETWEEN ? AND ? AND status = 1`,
				ground.RoutingKey, first, last); err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE stock JOIN (SELECT sku_id, SUM(quantity) AS n FROM stock_reservation
					WHERE order_sn BETWEEN ? AND ? GROUP BY sku_id) AS released USING (sku_id)
				SET amount = amount + n, version = version + 1`, first, last)
			return err
		}))
		c.applied.Add(n)
		left = n > 0
	}
	<-ctx.Done()
}
