// Package rival is what rollbackd is measured beside: consuming without any work, the classic algorithm with one
// transaction per message, and Watermill with a deduplication row in the effect's transaction. Each does the same work
// per message on the same queue and the same tables, with the settings that serve it best, and runs in a process of its
// own as the product does. Nothing here may be slower than it has to be: a rival that was held back proves nothing.
package rival

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Names of the rivals.
const (
	PlainEach     = "plain_each"     // every delivery acked by itself
	PlainMultiple = "plain_multiple" // acks over many deliveries
	Classic       = "classic"
	Watermill     = "watermill"
	Floor         = "floor" // takes nothing from the queue
)

// rivals are what each runs.
var rivals = map[string]func(context.Context, *contest){
	PlainEach: plain(1), PlainMultiple: plain(ackEvery), Classic: classic, Watermill: watermillRival, Floor: floor,
}

// contest is everything a rival is given, and what it says of itself under the product's metric, so that one reader
// reads all: deliveries by their outcomes. An attempt that failed is retried or dead.
type contest struct {
	cfg     config.Config
	workers int

	applied, duplicate, retried, dead atomic.Int64
}

// Main is the whole process of a rival: it works until SIGTERM, finishes what is in hand and returns. Where to work it
// learns from the product's own environment variables. It answers at /metrics and says where, as the product does.
func Main(name string, workers int) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	cfg, _, err := config.Load(os.Environ())
	must.OK(err)
	run, ok := rivals[name]
	if !ok {
		must.OK(fmt.Errorf("there is no rival %q", name))
	}
	c := &contest{cfg: cfg, workers: workers}
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for outcome, n := range map[string]*atomic.Int64{
			"applied": &c.applied, "duplicate": &c.duplicate, "retried": &c.retried, "dead_lettered": &c.dead,
		} {
			fmt.Fprintf(w, "rollbackd_deliveries_total{outcome=%q} %d\n", outcome, n.Load())
		}
	}))
	defer pages.Close()
	fmt.Printf(`{"msg": "listening", "addr": %q}`+"\n", pages.Listener.Addr())
	run(ctx, c)
}

// side lets so many workers take deliveries from the main queue side by side, each on a channel of its own, until ctx
// ends or one is not done with. worker makes what one of them does with a delivery.
func (c *contest) side(ctx context.Context, workers, prefetch int, worker func() func(amqp.Delivery) error) {
	conn := must.Get(amqp.Dial(c.cfg.AMQPURLs[0]))
	defer conn.Close()
	must.Side(workers, func(int) {
		take, ch := worker(), must.Get(conn.Channel())
		defer ch.Close()
		const global, autoAck, exclusive, noLocal, noWait = false, false, false, false, false
		must.OK(ch.Qos(prefetch, 0, global))
		deliveries := must.Get(ch.Consume(c.cfg.Queue, "", autoAck, exclusive, noLocal, noWait, nil))
		for {
			select {
			case <-ctx.Done():
				return
			case d, ok := <-deliveries:
				if !ok {
					must.OK(errors.New("the deliveries ended"))
				}
				must.OK(take(d))
			}
		}
	})
}

// settling acks what was processed, and gives back what was not.
func (c *contest) settling(process func(amqp.Delivery)) func(amqp.Delivery) error {
	return func(d amqp.Delivery) error {
		failed := must.Catch(func() { process(d) })
		if failed == nil {
			return d.Ack(false)
		}
		if !errors.Is(failed, errHeld) { // who has failed keeps the lock for a while, and the message comes again at once
			fmt.Fprintln(os.Stderr, failed)
		}
		return d.Nack(false, true)
	}
}

const (
	// Of 1, 2 and 4 channels with prefetches of 200, 1,000 and 4,000 none took less CPU for a delivery than these.
	plainChannels = 4
	plainPrefetch = 1000
	// ackEvery is how many deliveries one ack settles with multiple.
	ackEvery = 500
)

// plain consumes and acks, and does nothing else: no queue of this kind can be worked on faster by this client.
func plain(every int) func(context.Context, *contest) {
	return func(ctx context.Context, c *contest) {
		c.side(ctx, plainChannels, plainPrefetch, func() func(amqp.Delivery) error {
			n := 0
			return func(d amqp.Delivery) error {
				if n++; n%every != 0 {
					return nil
				}
				c.applied.Add(int64(every))
				return d.Ack(every > 1)
			}
		})
	}
}

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

// message is what a delivery says.
type message struct {
	key, tag string
	body     []byte
	order    struct {
		OrderSN string `json:"order_sn"`
		Items   []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
}

func read(key, tag string, body []byte) *message {
	m := &message{key: key, tag: tag, body: body}
	must.OK(json.Unmarshal(body, &m.order))
	if m.order.OrderSN == "" || len(m.order.Items) == 0 {
		must.OK(fmt.Errorf("message %s names no order or no items", key))
	}
	return m
}

// openPool opens as many connections as there are workers and keeps them. As for the product: READ COMMITTED, and
// values written into the statements by the driver, which saves the round trips of prepared statements.
func openPool(ctx context.Context, dsn string, workers int) *sql.DB {
	cfg := must.Get(mysql.ParseDSN(dsn))
	cfg.InterpolateParams, cfg.Logger = true, &mysql.NopLogger{}
	open := func() *sql.DB { return sql.OpenDB(must.Get(mysql.NewConnector(cfg))) }
	// It is tx_isolation on MariaDB 10 and transaction_isolation on MySQL 8.
	var variable, value string
	one := open()
	defer one.Close()
	must.OK(one.QueryRowContext(ctx, "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')").
		Scan(&variable, &value))
	cfg.Params = map[string]string{variable: "'READ-COMMITTED'"}
	db := open()
	db.SetMaxOpenConns(workers)
	db.SetMaxIdleConns(workers)
	return db
}

// effect gives the stock back: the reservations compare-and-set to released, noting by which message, then the stock.
// Two statements are the fewest that do it.
func (m *message) effect(ctx context.Context, tx *sql.Tx) error {
	args := []any{m.tag, m.key, m.order.OrderSN}
	for _, it := range m.order.Items {
		args = append(args, it.SKU, it.Quantity)
	}
	res, err := tx.ExecContext(ctx,
		`UPDATE stock_reservation SET status = 2, rollback_tag = ?, rollback_key = ?, room = '', updated_at = UTC_TIMESTAMP(6)
		WHERE order_sn = ? AND status = 1 AND (sku_id = ? AND quantity = ?`+
			strings.Repeat(" OR sku_id = ? AND quantity = ?", len(m.order.Items)-1)+")", args...)
	if err := all(res, err, len(m.order.Items)); err != nil {
		return err
	}
	args = args[3:]
	for _, it := range m.order.Items {
		args = append(args, it.SKU)
	}
	n := len(m.order.Items)
	res, err = tx.ExecContext(ctx, "UPDATE stock SET amount = amount + CASE sku_id"+strings.Repeat(" WHEN ? THEN ?", n)+
		" END, version = version + 1 WHERE sku_id IN (?"+strings.Repeat(",?", n-1)+")", args...)
	return all(res, err, n)
}

// rows are those of the consumer log, one for a message.
type rows struct {
	*contest
	db *sql.DB
}

// The values of consumer_status.
const (
	processing = iota
	success
	failed
	dead
)

// insert makes the row of a message that was never seen before, with its first attempt.
func (r rows) insert(ctx context.Context, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, m *message, status int) error {
	hash := sha256.Sum256(m.body)
	_, err := db.ExecContext(ctx,
		`INSERT INTO consumer_log (group_name, msg_tag, msg_key, msg_id, body_hash, consumer_status, consumer_times,
			replays, consumer_timestamp, created_at)
		VALUES (?, ?, ?, ?, ?, ?, 1, 0, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))`, []byte(r.cfg.Group), []byte(m.tag),
		[]byte(m.key), []byte(m.key), hash[:], status)
	return err
}

// lookUp reads the status and the attempts of a message, if it has a row.
func (r rows) lookUp(ctx context.Context, m *message) (status, times int, there bool) {
	err := r.db.QueryRowContext(ctx, "SELECT consumer_status, consumer_times FROM consumer_log WHERE group_name = ? "+
		"AND msg_tag = ? AND msg_key = ?", []byte(r.cfg.Group), []byte(m.tag), []byte(m.key)).Scan(&status, &times)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, 0, false
	}
	must.OK(err)
	return status, times, true
}

// end writes how the attempt ended into the row.
func (r rows) end(ctx context.Context, m *message, attempt, status int, remark string) {
	res, err := r.db.ExecContext(ctx, `UPDATE consumer_log SET consumer_status = ?, remark = ?,
			consumer_timestamp = UTC_TIMESTAMP(6)
		WHERE group_name = ? AND msg_tag = ? AND msg_key = ? AND consumer_status = 0 AND consumer_times = ?`,
		status, remark, []byte(r.cfg.Group), []byte(m.tag), []byte(m.key), attempt)
	must.OK(all(res, err, 1))
}

// errRows: a statement did not find the rows that it should change. Of an effect it says that the message cannot be
// applied now; another attempt may find them.
var errRows = errors.New("not the rows that should be there")

// all reports an error unless a statement changed as many rows as it should.
func all(res sql.Result, err error, want int) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && int(n) != want {
		err = fmt.Errorf("%w: %d changed, want %d", errRows, n, want)
	}
	return err
}

// transact runs do in a transaction; one that lost a deadlock is run again.
func transact(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err = do(tx); err == nil {
		err = tx.Commit()
	} else {
		_ = tx.Rollback() // whatever it says, the transaction is over
	}
	if mysqldb.Classify(err) == mysqldb.FaultContention {
		return transact(ctx, db, do)
	}
	return err
}
