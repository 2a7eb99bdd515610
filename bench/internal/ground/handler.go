package ground

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/handler/http"
)

// The rounds of the handlers sql and http have other tables than the stock's, or none: what an order holds follows from
// its number alone, so the check needs no reservations.

const statementsFile = "deploy/examples/sql/order-state/handler.sql"

// handlerSettings choose the handler of the round; rivals read from them what they have to do.
func (f *Field) handlerSettings() []string {
	switch f.sown.Handler {
	case config.HandlerSQL:
		return []string{
			"HANDLER=" + config.HandlerSQL,
			"SQL_FILE=" + filepath.Join(cmp.Or(f.Build.folder, f.ground.module), statementsFile),
		}
	case config.HandlerHTTP:
		return []string{"HANDLER=" + config.HandlerHTTP, "HTTP_TARGET=" + f.ground.service.URL + "/rollbacks"}
	}
	return nil
}

// seedHandler makes what the handler of the round works on: an order's state and a row of stock for each of the goods,
// or a service that knows nothing yet.
func (f *Field) seedHandler(ctx context.Context) error {
	if f.sown.Handler == config.HandlerHTTP {
		f.ground.service.forget(cmp.Or(f.sown.AnswerAfter, answerAfter))
		return nil
	}
	statements := []string{
		"DROP TABLE IF EXISTS tb_order", "DROP TABLE IF EXISTS tb_stock",
		"CREATE TABLE tb_order (order_sn VARCHAR(64) NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount INT UNSIGNED NOT NULL) ENGINE=InnoDB",
		fmt.Sprintf("INSERT INTO tb_stock SELECT n+1, %d FROM %s WHERE n < %d", amountAtFirst, numbers, f.sown.Goods),
		fmt.Sprintf("INSERT INTO tb_order SELECT %s, 'cancelling' FROM %s WHERE n < %d", sqlOrder, numbers, f.sown.Orders),
	}
	if f.sown.Orders > numbersThereAre {
		return fmt.Errorf("%d orders are too many: at most %d", f.sown.Orders, numbersThereAre)
	}
	for _, statement := range statements {
		if err := f.exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// checkHandler holds a round of the handlers sql and http to the promise: whose row says success, and nobody else, has
// had its effect, once, and the goods have got back exactly what those orders held.
func (f *Field) checkHandler(ctx context.Context, _ int64) error {
	applied, err := f.keysApplied(ctx)
	if err != nil {
		return err
	}
	effect, amounts, err := f.effects(ctx)
	if err != nil {
		return err
	}
	want := map[int64]int64{}
	for n := range f.sown.Orders {
		key := Key(f.sown.seed, n)
		if applied[key] != effect(n, key) {
			return broken("order %d: its row says success is %v, its effect is there is %v", n, applied[key],
				effect(n, key))
		}
		if applied[key] {
			sku1, q1, sku2, q2 := goods(n, f.sown.Goods)
			want[sku1] += q1
			want[sku2] += q2
		}
		delete(applied, key)
	}
	if len(applied) > 0 {
		return broken("%d rows say success of messages that were never sent", len(applied))
	}
	for sku := range f.sown.Goods {
		if got := amounts[sku+1]; got != want[sku+1] {
			return broken("sku %d got %d back, its applied orders held %d", sku+1, got, want[sku+1])
		}
	}
	return nil
}

// keysApplied are the keys of the rows in success.
func (f *Field) keysApplied(ctx context.Context) (map[string]bool, error) {
	keys := map[string]bool{}
	err := f.Each(ctx, "SELECT msg_key, 0 FROM consumer_log WHERE consumer_status = 1", func(key string, _ int64) error {
		keys[key] = true
		return nil
	})
	return keys, err
}

// effects say of each order whether its effect is there, and what each of the goods has got back.
func (f *Field) effects(ctx context.Context) (has func(n int64, key string) bool, amounts map[int64]int64, err error) {
	if f.sown.Handler == config.HandlerHTTP {
		known, amounts := f.ground.service.seen()
		return func(_ int64, key string) bool {
			return known[http.KeyOf(dedup.Identity{Group: Group, Tag: RoutingKey, Key: key})]
		}, amounts, nil
	}
	cancelled := map[int64]bool{}
	err = f.Each(ctx, "SELECT order_sn, 0 FROM tb_order WHERE status = 'cancelled'", func(order string, _ int64) error {
		n, err := strconv.ParseInt(strings.TrimPrefix(order, orderPrefix), 10, 64)
		cancelled[n] = true
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	amounts = map[int64]int64{}
	err = f.Each(ctx, "SELECT goods_id, amount FROM tb_stock", func(sku string, amount int64) error {
		n, err := strconv.ParseInt(sku, 10, 64)
		amounts[n] = amount - amountAtFirst
		return err
	})
	return func(n int64, _ string) bool { return cancelled[n] }, amounts, err
}
