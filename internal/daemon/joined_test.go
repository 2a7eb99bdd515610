package daemon_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/rollbackd/rollbackd/dedup"
	sqlhandler "github.com/rollbackd/rollbackd/internal/handler/sql"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Given a file whose statements are joined for many messages, and orders of which everything comes twice, some under
// two keys and some with goods that nobody knows, when daemons are killed in the middle and COMMITs lose their answers,
// then each order's goods are back once, and what cannot be applied is dead and has left nothing.
func TestJoinedStatementsKeepThePromiseUnderFaults(t *testing.T) {
	t.Parallel()
	file := must(filepath.Abs(filepath.Join("..", "..", "deploy", "examples", "sql", "order-state", "handler.sql")))(t)
	w := newWorld(t, "HANDLER", "sql", "SQL_FILE", file, "BATCH_SIZE", "100", "LANES", "2", "LOCK_TTL", "1s",
		"HANDLER_TIMEOUT", "3s", "LEASE", "5s", "MAX_DEAD_RATE", "off")
	w.exec("CREATE TABLE tb_order (order_sn VARCHAR(64) NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL) ENGINE=InnoDB")
	w.exec("CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT NOT NULL, CHECK (amount >= 0)) " +
		"ENGINE=InnoDB")
	f := must(sqlhandler.Load(file, nil))(t)
	if err := f.Check(t.Context(), w.db); err != nil || !f.Joined() {
		t.Fatalf("the statements are not joined (%v): nothing is tried", err)
	}

	messages := sized(800, 50_000)
	orders := shop.Orders(w.rng, "order", messages, skus)
	want := map[int64]int64{}
	var sent []oracle.Sent
	second, dead := 0, 0
	for i, o := range orders {
		w.exec("INSERT INTO tb_order VALUES (?, 'cancelling')", o.SN)
		if i%50 == 7 { // its second item is unknown: the first, and the order's state, must be undone
			o.Items = append(o.Items[:1:1], o.Items[0])
			o.Items[1].SKU = 1_000_000
			dead++
			sent = append(sent, oracle.Sent{Publishing: w.route.Message(o.Key(), o.Body()),
				Fate: oracle.ToDie(dedup.ReasonPermanent)})
			continue
		}
		for _, it := range o.Items {
			want[it.SKU] += it.Quantity
		}
		sent = append(sent, w.route.Rollback(o))
		if i%40 == 3 {
			second++
			again := w.route.Message("again-"+o.SN, o.Body())
			sent = append(sent, oracle.Sent{Publishing: again, Fate: oracle.ToBeApplied()})
		}
	}
	for sku := range skus {
		w.exec("INSERT INTO tb_stock VALUES (?, 0)", sku+1)
	}
	w.publish(shop.Repeat(w.rng, sent, .3)...)

	direct := w.env["MYSQL_DSN"]
	proxy := stack.Proxy(t, stack.Addr(t, direct))
	w.set("MYSQL_DSN", proxy.Through(direct))
	for _, share := range []float64{.1, .4} {
		commits := func(piece []byte) bool { return bytes.HasSuffix(piece, []byte("\x03COMMIT")) }
		proxy.DropReply(commits)
		proxy.DropRequest(commits)
		daemon := w.start()
		w.freezeInside(daemon, int(share*float64(messages)))
		w.kill(daemon)
	}
	daemon := w.start()
	w.ended(messages + second)
	w.stop(daemon)
	is(w, "rows say success", w.rows(dedup.Success), messages-dead+second)
	is(w, "rows are dead and permanent",
		w.count("SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 3 AND reason = 'permanent'"), dead)
	is(w, "orders are still being cancelled",
		w.count("SELECT COUNT(*) FROM tb_order WHERE status = 'cancelling'"), dead)
	for sku := int64(1); sku <= skus; sku++ {
		if n := int64(w.count("SELECT amount FROM tb_stock WHERE goods_id = ?", sku)); n != want[sku] {
			t.Errorf("goods %d got %d back, want %d", sku, n, want[sku])
		}
	}
}
