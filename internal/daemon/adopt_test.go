package daemon_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/require"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// Given a shop whose job goes over a table of cancelled orders, when the script of docs/adopting.md takes the job's
// place, is killed, fails and runs twice at once, then each order is given back once, and no row is marked that was not
// published.
func TestAJobOverATableIsBroughtOver(t *testing.T) {
	file := require.Get(filepath.Abs("../../deploy/examples/sql/classic/handler.sql"))(t)
	w := newWorld(t, "HANDLER", "sql", "SQL_FILE", file, "KEY_FROM", "property:message_id", "ROUTING_KEYS",
		"order.cancelled")
	w.exec("CREATE TABLE tb_stock (goods_id BIGINT PRIMARY KEY, amount INT UNSIGNED NOT NULL) ENGINE=InnoDB")
	w.exec("CREATE TABLE cancelled_order (id BIGINT AUTO_INCREMENT PRIMARY KEY, body JSON NOT NULL, " +
		"done TINYINT NOT NULL DEFAULT 0) ENGINE=InnoDB")
	const all, byTheOldJob = 600, 100
	wanted := map[int64]int64{}
	for i, o := range shop.Orders(w.rng, "job", all, skus) {
		w.exec("INSERT INTO cancelled_order (body, done) VALUES (?, ?)", string(o.Body()), i < byTheOldJob)
		for _, item := range o.Items {
			w.exec("INSERT IGNORE INTO tb_stock VALUES (?, 0)", item.SKU)
			if i >= byTheOldJob {
				wanted[item.SKU] += item.Quantity
			}
		}
	}
	open := func() int { return w.count("SELECT COUNT(*) FROM cancelled_order WHERE done = 0") }
	job := w.job()
	if _, err := job(os.Getenv("PATH")); err == nil {
		t.Error("a script without rollbackd says that it has published")
	}
	require.Is(t, open(), all-byTheOldJob, "orders are open after a run that published nothing")
	daemon := w.start()
	path := filepath.Dir(program.Shared(t)) + ":" + os.Getenv("PATH") // in which the program is called rollbackd
	works := func() { out, err := job(path); assert.OK(t, err, "the script:", out) }
	var twice sync.WaitGroup
	for range 2 {
		twice.Go(works)
	}
	twice.Wait()
	// A run that is killed between publishing and marking publishes again.
	w.exec("UPDATE cancelled_order SET done = 0 WHERE id BETWEEN 200 AND 300")
	works()
	is(w, "orders are left in the table", open(), 0)
	w.ended(all - byTheOldJob)
	w.stop(daemon)
	is(w, "are applied", w.rows(dedup.Success), all-byTheOldJob)
	for sku, want := range wanted {
		assert.Is(t, int64(w.count("SELECT amount FROM tb_stock WHERE goods_id = ?", sku)), want, "back of sku %d", sku)
	}
}

// job is the script of the page as the shop runs it, with programs from a path.
func (w *world) job() func(path string) (string, error) {
	w.t.Helper()
	dsn := require.Get(mysql.ParseDSN(w.env["MYSQL_DSN"]))(w.t)
	host, port, _ := net.SplitHostPort(dsn.Addr)
	client := fmt.Sprintf("mysql --no-defaults -h%s -P%s -u%s %s", host, port, dsn.User, dsn.DBName)
	return func(path string) (string, error) {
		cmd := exec.CommandContext(w.t.Context(), "sh", "../../deploy/examples/job/publish-cancelled.sh")
		cmd.Env = append(w.environ(), "PATH="+path, "MYSQL="+client, "MYSQL_PWD="+dsn.Passwd)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}
