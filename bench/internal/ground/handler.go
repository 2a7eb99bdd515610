package ground

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler/http"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// The rounds of the handlers sql and http have other tables than the stock's, or none: what an order holds follows from
// its number alone, so the check needs no reservations.

const (
	statementsFile = "deploy/examples/sql/order-state/handler.sql"
	guardedFile    = "bench/internal/ground/guarded.sql"
)

// handlerSettings choose the handler of the round; rivals read from them what they have to do.
func (f *Field) handlerSettings() []string {
	switch f.sown.Handler {
	case config.HandlerSQL:
		file := filepath.Join(cmp.Or(f.Build.folder, f.ground.module), statementsFile)
		if f.sown.Guarded { // an older build has none
			file = filepath.Join(f.ground.module, guardedFile)
		}
		return []string{"HANDLER=" + config.HandlerSQL, "SQL_FILE=" + file}
	case config.HandlerHTTP:
		return []string{"HANDLER=" + config.HandlerHTTP, "HTTP_TARGET=" + f.ground.service.URL + "/rollbacks"}
	}
	if f.sown.Emits {
		return []string{"EMIT=" + config.EmitStockReleased}
	}
	return nil
}

// seedHandler makes what the handler of the round works on: an order's state and a row of stock for each of the goods,
// or a service that knows nothing yet.
func (f *Field) seedHandler() {
	if f.sown.Handler == config.HandlerHTTP {
		f.ground.service.forget()
		return
	}
	if f.sown.Orders > numbersThereAre {
		must.OK(fmt.Errorf("%d orders are too many: at most %d", f.sown.Orders, numbersThereAre))
	}
	amount := "INT UNSIGNED"
	if f.sown.Guarded {
		amount = "DECIMAL(20,2)"
	}
	f.exec(
		"DROP TABLE IF EXISTS tb_order", "DROP TABLE IF EXISTS tb_stock",
		"CREATE TABLE tb_order (order_sn VARCHAR(64) NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount "+amount+" NOT NULL) ENGINE=InnoDB",
		fmt.Sprintf("INSERT INTO tb_stock SELECT n+1, %d FROM %s WHERE n < %d", amountAtFirst, numbers, f.sown.Goods),
		fmt.Sprintf("INSERT INTO tb_order SELECT %s, 'cancelling' FROM %s WHERE n < %d", sqlOrder, numbers, f.sown.Orders))
}

// checkHandler holds a round of the handlers sql and http to the promise: whose row says success, and nobody else, has
// had its effect, once, and the goods have got back exactly what those orders held.
func (f *Field) checkHandler() {
	applied := map[string]bool{}
	f.Each("SELECT msg_key, 0 FROM consumer_log WHERE consumer_status = 1", func(key string, _ int64) {
		applied[key] = true
	})
	effect, amounts := f.effects()
	want := map[int64]int64{}
	for n := range f.sown.Orders {
		key := Key(f.sown.seed, n)
		if applied[key] != effect(n, key) {
			broken("order %d: its row says success is %v, its effect is there is %v", n, applied[key], effect(n, key))
		}
		if applied[key] {
			sku1, q1, sku2, q2 := goods(n, f.sown.Goods)
			want[sku1] += q1
			want[sku2] += q2
		}
		delete(applied, key)
	}
	if len(applied) > 0 {
		broken("%d rows say success of messages that were never sent", len(applied))
	}
	for sku := range f.sown.Goods {
		if got := amounts[sku+1]; got != want[sku+1] {
			broken("sku %d got %d back, its applied orders held %d", sku+1, got, want[sku+1])
		}
	}
}

// effects say of each order whether its effect is there, and what each of the goods has got back.
func (f *Field) effects() (has func(n int64, key string) bool, amounts map[int64]int64) {
	if f.sown.Handler == config.HandlerHTTP {
		known, amounts := f.ground.service.forget()
		return func(_ int64, key string) bool {
			return known[http.KeyOf(dedup.Identity{Group: Group, Tag: RoutingKey, Key: key})]
		}, amounts
	}
	number := func(text string) int64 { return must.Get(strconv.ParseInt(text, 10, 64)) }
	cancelled, amounts := map[int64]bool{}, map[int64]int64{}
	f.Each("SELECT order_sn, 0 FROM tb_order WHERE status = 'cancelled'", func(order string, _ int64) {
		cancelled[number(strings.TrimPrefix(order, orderPrefix))] = true
	})
	f.Each("SELECT goods_id, CAST(amount AS SIGNED) FROM tb_stock", func(sku string, amount int64) {
		amounts[number(sku)] = amount - amountAtFirst
	})
	return func(n int64, _ string) bool { return cancelled[n] }, amounts
}
