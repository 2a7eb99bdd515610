package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/stack"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/stock"
)

func TestMain(m *testing.M) { stack.Main(m) }

// world is a shop's schema with ten pieces of sku 7.
type world struct {
	*testing.T
	dsn *mysql.Config
	g   *gorm.DB
	db  *sql.DB
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	dsn := stack.MySQL(t)
	w := &world{T: t, dsn: require.Get(mysql.ParseDSN(dsn))(t)}
	w.g = require.First(mysqldb.Open(t.Context(), dsn, mysqldb.Options{}))(t)
	w.db = require.Get(w.g.DB())(t)
	t.Cleanup(func() { _ = w.db.Close() })
	sets := outbox.Sets()
	sets.Extra = append(sets.Extra, dedup.MigrationSet{Name: stock.MigrationSet, Files: stock.Migrations()})
	require.OK(w, dedup.Migrate(t.Context(), w.g, sets))
	stack.Script(t, w.db, "orders.sql")
	stack.Exec(t, w.db, "INSERT INTO stock VALUES (7, 10, 0)")
	return w
}

// python runs orders.py. The system's own Python has the system's own driver.
func (w *world) python(args ...string) error {
	w.Helper()
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(w.Context(), python, "-c", "import pymysql").Run(); err != nil &&
		os.Getenv("ROLLBACKD_TEST_LANGUAGES") == "" {
		w.Skip("Python has no pymysql; 'make test ONLY=languages' installs it")
	}
	cmd := exec.CommandContext(w.Context(), python, append([]string{"orders.py"}, args...)...)
	cmd.Env = append(os.Environ(),
		fmt.Sprintf("ORDERS_DSN=%s:%s@%s/%s", w.dsn.User, w.dsn.Passwd, w.dsn.Addr, w.dsn.DBName))
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// Given an order that is paid, one that is cancelled and one that is left alone, then only what was promised is in the
// outbox, and the stock has what was reserved.
func TestAnOrderIsPaidCancelledOrLeftToItsTimeout(t *testing.T) {
	for language, service := range map[string]func(w *world, args ...string) error{
		"go": func(w *world, args ...string) error {
			s := shop{w.g, 30 * time.Minute}
			switch args[0] {
			case "place":
				return s.place(w.Context(), args[1], stock.Item{SKU: 7, Quantity: 2})
			case "pay":
				return s.pay(w.Context(), args[1])
			}
			return s.cancel(w.Context(), args[1])
		},
		"python": (*world).python,
	} {
		t.Run(language, func(t *testing.T) {
			w := newWorld(t)
			for _, order := range []string{"paid", "cancelled", "left", "late"} {
				require.OK(w, service(w, "place", order, "7", "2"))
			}
			require.OK(w, service(w, "pay", "paid"))
			require.OK(w, service(w, "cancel", "cancelled"))
			// The timeout of one was sent, and its goods went back before the payment came.
			require.OK(w, w.g.Transaction(func(tx *gorm.DB) error {
				err := stock.Rollback(t.Context(), tx, []stock.Request{{OrderSN: "late", Tag: "order.timeout", Key: "late"}},
					stock.Options{})
				return errors.Join(err, tx.Exec("DELETE FROM rollbackd_outbox WHERE msg_key = 'late'").Error)
			}))
			if err := service(w, "pay", "late"); err == nil {
				t.Error("an order whose goods went back can be paid")
			}
			if err := service(w, "pay", "cancelled"); err == nil {
				t.Error("a cancelled order can be paid")
			}
			waiting := require.Get(mysqldb.List(t.Context(), w.db, func(rows *sql.Rows) (s string, err error) {
				return s, rows.Scan(&s)
			}, "SELECT CONCAT(msg_tag, '/', msg_key, IF(due_at > UTC_TIMESTAMP(6) + INTERVAL 29 MINUTE, ' later', '')) "+
				"FROM rollbackd_outbox ORDER BY msg_tag, msg_key"))(w)
			assert.Equal(t, waiting, []string{"order.cancelled/cancelled", "order.timeout/left later"}, "the outbox holds")
			assert.Is(t, stack.Number(t, w.db, "SELECT amount FROM stock"), 4, "pieces are left")
			assert.Is(t, stack.Number(t, w.db, "SELECT status FROM stock_reservation WHERE order_sn = 'paid'"), 3,
				"the paid reservation has the status")
		})
	}
}
