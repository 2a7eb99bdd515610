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

func read(key, tag string, body []byte) (*message, error) {
	m := &message{key: key, tag: tag, body: body}
	if err := json.Unmarshal(body, &m.order); err != nil {
		return nil, fmt.Errorf("read message %s: %w", key, err)
	}
	if m.order.OrderSN == "" || len(m.order.Items) == 0 {
		return nil, fmt.Errorf("message %s names no order or no items", key)
	}
	return m, nil
}

// openPool opens as many connections as there are workers and keeps them. As for the product: READ COMMITTED, and
// values written into the statements by the driver, which saves the round trips of prepared statements.
func openPool(ctx context.Context, dsn string, workers int) (*sql.DB, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("read the DSN: %w", err)
	}
	cfg.InterpolateParams, cfg.Logger = true, &mysql.NopLogger{}
	variable, err := isolationVariable(ctx, dsn)
	if err != nil {
		return nil, err
	}
	cfg.Params = map[string]string{variable: "'READ-COMMITTED'"}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("open mysql: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(workers)
	db.SetMaxIdleConns(workers)
	return db, nil
}

// isolationVariable is tx_isolation on MariaDB 10 and transaction_isolation on MySQL 8.
func isolationVariable(ctx context.Context, dsn string) (name string, err error) {
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		return "", fmt.Errorf("open mysql: %w", err)
	}
	defer db.Close()
	var value string
	if err := db.QueryRowContext(ctx, "SHOW VARIABLES WHERE Variable_name IN ('tx_isolation', 'transaction_isolation')").
		Scan(&name, &value); err != nil {
		return "", fmt.Errorf("look for the isolation's variable: %w", err)
	}
	return name, nil
}

// effect gives the stock back: the reservations compare-and-set to released, noting by which message, then the stock.
// Two statements are the fewest that do it.
func (m *message) effect(ctx context.Context, tx *sql.Tx) error {
	var where, quantity, skus strings.Builder
	args := []any{m.tag, m.key, m.order.OrderSN}
	var add, in []any
	for i, it := range m.order.Items {
		if i > 0 {
			where.WriteString(" OR ")
			skus.WriteString(",")
		}
		where.WriteString("sku_id = ? AND quantity = ?")
		args = append(args, it.SKU, it.Quantity)
		quantity.WriteString(" WHEN ? THEN ?")
		add = append(add, it.SKU, it.Quantity)
		skus.WriteString("?")
		in = append(in, it.SKU)
	}
	res, err := tx.ExecContext(ctx,
		`UPDATE stock_reservation SET status = 2, rollback_tag = ?, rollback_key = ?, room = '', updated_at = UTC_TIMESTAMP(6)
		WHERE order_sn = ? AND status = 1 AND (`+where.String()+")", args...)
	if err := all(res, err, len(m.order.Items)); err != nil {
		return fmt.Errorf("release order %s: %w", m.order.OrderSN, err)
	}
	res, err = tx.ExecContext(ctx, "UPDATE stock SET amount = amount + CASE sku_id"+quantity.String()+
		" END, version = version + 1 WHERE sku_id IN ("+skus.String()+")", append(add, in...)...)
	if err := all(res, err, len(m.order.Items)); err != nil {
		return fmt.Errorf("restock order %s: %w", m.order.OrderSN, err)
	}
	return nil
}

// cancel gives the stock back on the tables of handler sql: the order's state is the guard, then the stock. Two
// statements again.
func (m *message) cancel(ctx context.Context, tx *sql.Tx) error {
	res, err := tx.ExecContext(ctx,
		"UPDATE tb_order SET status = 'cancelled' WHERE order_sn = ? AND status = 'cancelling'", m.order.OrderSN)
	if err := all(res, err, 1); err != nil {
		return fmt.Errorf("cancel order %s: %w", m.order.OrderSN, err)
	}
	var quantity, skus strings.Builder
	var add, in []any
	for i, it := range m.order.Items {
		if i > 0 {
			skus.WriteString(",")
		}
		quantity.WriteString(" WHEN ? THEN ?")
		add = append(add, it.SKU, it.Quantity)
		skus.WriteString("?")
		in = append(in, it.SKU)
	}
	res, err = tx.ExecContext(ctx, "UPDATE tb_stock SET amount = amount + CASE goods_id"+quantity.String()+
		" END WHERE goods_id IN ("+skus.String()+")", append(add, in...)...)
	if err := all(res, err, len(m.order.Items)); err != nil {
		return fmt.Errorf("restock order %s: %w", m.order.OrderSN, err)
	}
	return nil
}

func (m *message) hash() []byte {
	sum := sha256.Sum256(m.body)
	return sum[:]
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

const (
	errDuplicate = 1062
	errDeadlock  = 1213
	errLockWait  = 1205
)

func isMySQL(err error, numbers ...uint16) bool {
	e, ok := errors.AsType[*mysql.MySQLError](err)
	if !ok {
		return false
	}
	for _, n := range numbers {
		if e.Number == n {
			return true
		}
	}
	return false
}

// transact runs do in a transaction; one that lost a deadlock is run again.
func transact(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	for {
		err := transactOnce(ctx, db, do)
		if !isMySQL(err, errDeadlock, errLockWait) {
			return err
		}
	}
}

func transactOnce(ctx context.Context, db *sql.DB, do func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback() // whatever it says, the transaction is over
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
