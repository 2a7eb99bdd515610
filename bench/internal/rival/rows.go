package rival

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

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
