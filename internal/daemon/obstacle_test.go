package daemon_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given orders of 60 goods, and somebody else who holds the row of one of them, when daemons consume them, then those
// that do not need that row flow again soon, at half the rate or more; and when the row is free all are applied, and
// nobody has lost an attempt. With ROLLBACKD_TEST_BIG (make test-big) also by SQL files, with many more messages.
func TestAForeignRowLockSlowsOnlyThoseWhoMeetIt(t *testing.T) {
	t.Parallel()
	const (
		goods, held = 60, 30
		least       = .25              // half of what is promised: the machine may have other work
		soon        = 30 * time.Second // twice what it takes to find out what those have in common who meet the lock
	)
	kinds := []struct {
		name, file, table, id string
		daemons, messages     int
	}{
		{"stock", "", "stock", "sku_id", 1, 50_000},
		{"statements that are not joined", "testdata/stock.sql", "stock", "sku_id", 1, 15_000},
		{"joined statements, two daemons", "../../deploy/examples/sql/classic/handler.sql", "tb_stock", "goods_id",
			2, 80_000},
	}
	for _, kind := range kinds[:sized(1, len(kinds))] {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t)
			own := kind.table != "stock"
			if own { // the audit's triggers would keep the statements from being joined
				w.exec("CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount BIGINT NOT NULL) ENGINE=InnoDB")
				for id := range goods {
					w.exec("INSERT INTO tb_stock VALUES (?, 0)", id+1)
				}
			}
			if kind.file != "" {
				w.sqlFile(kind.file, own)
			}
			messages := sized(kind.messages/25, 4*kind.messages)
			orders := shop.Orders(w.rng, "order", 2*messages, goods)
			if !own {
				require.OK(t, shop.Stock(t.Context(), w.db, goods, 10_000_000))
				require.OK(t, shop.SeedReserved(t.Context(), w.db, orders))
				w.remember()
			}

			// run says how long it takes until nine tenths of n are applied.
			run := func(some []shop.Order, n int) time.Duration {
				w.publish(w.route.Rollbacks(some)...)
				before := w.rows(dedup.Success)
				for range kind.daemons {
					daemon := w.start()
					defer w.stop(daemon)
				}
				began := time.Now()
				after := func(tenths int) time.Duration {
					w.eventually(fmt.Sprintf("%d tenths of %d orders are applied", tenths, n),
						func() bool { return w.rows(dedup.Success) >= before+n*tenths/10 })
					return time.Since(began).Round(time.Millisecond)
				}
				first := after(1)
				most := after(9)
				t.Logf("a tenth of %d is applied after %v, nine tenths after %v: %.0f/s", n, first, most,
					float64(n)*.8/(most-first).Seconds())
				return most
			}
			undisturbed := run(orders[:messages], messages)
			free, want := 0, map[int64]int64{}
			for i, o := range orders {
				needs := false
				for _, it := range o.Items {
					needs = needs || it.SKU == held
					want[it.SKU] += it.Quantity
				}
				if i >= messages && !needs {
					free++
				}
			}
			letGo := w.hold([]string{"ROLLBACK"}, "BEGIN", fmt.Sprintf("UPDATE %s SET amount = amount + 1 WHERE %s = %d",
				kind.table, kind.id, held))
			disturbed := run(orders[messages:], free)
			assert.AtMost(t, disturbed, soon+time.Duration(float64(undisturbed)/least),
				"beside a foreign lock it takes, without %v", undisturbed)
			daemon := w.start()
			letGo()
			began := time.Now()
			w.ended(2 * messages)
			t.Logf("all are applied %v after the lock is gone", time.Since(began).Round(time.Millisecond))
			w.stop(daemon)
			assert.AtMost(t, w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status <> 1 OR consumer_times <> 1"), 0,
				"messages are not applied, or were charged for the wait")
			if !own {
				w.judge(oracle.Allowance{})
				return
			}
			for id, n := range want {
				assert.Is(t, int64(w.count("SELECT amount FROM tb_stock WHERE goods_id = ?", id)), n, "goods %d back", id)
			}
		})
	}
}

// sqlFile sets a file of statements, after a look whether they are joined.
func (w *world) sqlFile(name string, joined bool) {
	w.t.Helper()
	path := require.Get(filepath.Abs(filepath.FromSlash(name)))(w.t)
	w.set("HANDLER", "sql", "SQL_FILE", path)
	f := require.Get(sqlhandler.Load(path, nil))(w.t)
	if err := f.Check(w.t.Context(), w.db); err != nil || f.Joined() != joined {
		w.t.Fatalf("the statements of %s are joined: %v, want %v (%v)", name, f.Joined(), joined, err)
	}
}
