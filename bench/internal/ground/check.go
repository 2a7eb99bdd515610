package ground

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/config"
	calls "github.com/rollbackd/rollbackd/internal/handler/http"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/outbox"
)

// Harvest is what a round has left behind, checked.
type Harvest struct {
	Applied int64 // success rows of this round
	Dead    int64 // messages in the dead-letter queue
}

// ErrBroken says that a round broke the promise; whoever ran it, that is no figure, and no other round makes up for it.
var ErrBroken = errors.New("the promise is broken")

func broken(format string, args ...any) {
	must.OK(fmt.Errorf("%w: %w", ErrBroken, fmt.Errorf(format, args...)))
}

// Check holds the round to the promise, whoever ran it, after all its processes have ended:
//
//   - per sku, amount + reserved is what it was (the oracle's first rule): nothing was given back twice or half;
//   - both items of an order are released or none, and exactly as many orders as there are success rows;
//   - every release names the key of a success row;
//   - what is not applied is in a queue: nothing was lost.
//
// Rounds of other handlers than the built-in one have rules of their own, see checkHandler.
func (f *Field) Check() (h Harvest) {
	h.Applied = value[int64](f, successes) - f.rowsBefore
	if f.Sown.Handler != "" {
		f.checkHandler()
	} else {
		f.checkReservations(h.Applied)
	}
	if f.Sown.Emits {
		f.checkEvents(h.Applied)
	}
	h.Dead = f.checkQueues(h.Applied)
	return h
}

// checkReservations holds the tables of package stock to it.
func (f *Field) checkReservations(applied int64) {
	after := must.Get(oracle.ReadStock(f.ground.Ctx, f.DB))
	if len(after) != len(f.before) {
		broken("there are %d goods, there were %d", len(after), len(f.before))
	}
	for sku, g := range after {
		was := f.before[sku]
		if g.Total() != was.Total() && !f.grown {
			broken("sku %d has %d in all, had %d", sku, g.Total(), was.Total())
		}
		if g.Amount-was.Amount != g.Released {
			broken("sku %d got %d back, its reservations say %d", sku, g.Amount-was.Amount, g.Released)
		}
	}
	for what, query := range map[string]string{
		"items are released by messages whose rows do not say success": `SELECT COUNT(*) FROM stock_reservation AS r
			LEFT JOIN consumer_log AS l FORCE INDEX (PRIMARY) ON l.group_name = '` + Group + `' AND l.msg_tag = r.rollback_tag
			AND l.msg_key = r.rollback_key AND l.consumer_status = 1 WHERE r.status = 2 AND l.msg_key IS NULL`,
		"orders are released by half": "SELECT COUNT(*) FROM (SELECT order_sn FROM stock_reservation GROUP BY order_sn " +
			"HAVING SUM(status = 2) NOT IN (0, 2)) AS halves",
		"items are released more than the success rows say, or fewer": fmt.Sprintf(
			"SELECT ABS(COUNT(*) - %d) FROM stock_reservation WHERE status = 2", 2*applied),
	} {
		if n := value[int64](f, query); n > 0 {
			broken("%d %s", n, what)
		}
	}
}

// checkQueues waits until what was unacked is back and compares. What was published once and is not applied must be in
// a queue: where nothing fails in the main queue and exactly once; else in any of them, and at least once, because a
// copy is confirmed before the message is acked. Twins end without a row of their own, so they are not counted.
func (f *Field) checkQueues(applied int64) (dead int64) {
	fails := f.Sown.PoisonEvery != 0 || f.Sown.Mistaken
	var left, all int64
	if !f.ground.Within(time.Minute, func() bool {
		left, all = f.ground.Depth(), f.ground.depth(f.ground.queues...)
		open := f.Published() - applied
		return f.Sown.Twins > 0 || f.Sown.Unreserved || f.Published() == 0 || !fails && left == open || fails && all >= open
	}) {
		broken("of %d messages %d are applied, %d are in the queue, %d in all queues", f.Published(), applied, left, all)
	}
	return f.ground.depth(rabbit.DeadQueue(Queue))
}

// checkEvents holds the outbox to the promise: each message that was applied has its event there, or in the queue.
func (f *Field) checkEvents(applied int64) {
	var put, sent int64
	there := func() bool {
		put, sent = value[int64](f, "SELECT COUNT(*) FROM "+outbox.Table), f.ground.depth(events)
		return put+sent >= applied
	}
	if !f.ground.Within(countedWithin, there) || sent == 0 && put != applied {
		broken("%d messages are applied, %d events wait and %d are sent", applied, put, sent)
	}
}

// The rounds of the handlers sql and http have other tables than the stock's, or none: what an order holds follows from
// its number alone, so the check needs no reservations.

const (
	statementsFile = "deploy/examples/sql/order-state/handler.sql"
	guardedFile    = "bench/internal/ground/guarded.sql"
)

// handlerSettings choose the handler of the round.
func (f *Field) handlerSettings() []string {
	switch {
	case f.Sown.Handler == config.HandlerHTTP:
		return []string{"HANDLER=" + config.HandlerHTTP, "HTTP_TARGET=" + f.ground.service.URL + "/rollbacks"}
	case f.Sown.Guarded: // an older build has no such file
		return []string{"HANDLER=" + config.HandlerSQL, "SQL_FILE=" + filepath.Join(f.ground.module, guardedFile)}
	case f.Sown.Handler == config.HandlerSQL:
		file := filepath.Join(cmp.Or(f.Build.folder, f.ground.module), statementsFile)
		return []string{"HANDLER=" + config.HandlerSQL, "SQL_FILE=" + file}
	case f.Sown.Emits:
		return []string{"EMIT=" + config.EmitStockReleased}
	}
	return nil
}

// seedHandler makes what the handler of the round works on: an order's state and a row of stock for each of the goods,
// or a service that knows nothing yet.
func (f *Field) seedHandler() {
	if f.Sown.Handler == config.HandlerHTTP {
		f.ground.service.forget()
		return
	}
	if f.Sown.Orders > numbersThereAre {
		must.OK(fmt.Errorf("%d orders are too many: at most %d", f.Sown.Orders, numbersThereAre))
	}
	amount := "INT UNSIGNED"
	if f.Sown.Guarded {
		amount = "DECIMAL(20,2)"
	}
	f.exec(
		"DROP TABLE IF EXISTS tb_order", "DROP TABLE IF EXISTS tb_stock",
		"CREATE TABLE tb_order (order_sn VARCHAR(64) NOT NULL PRIMARY KEY, status VARCHAR(20) NOT NULL) ENGINE=InnoDB",
		"CREATE TABLE tb_stock (goods_id BIGINT NOT NULL PRIMARY KEY, amount "+amount+" NOT NULL) ENGINE=InnoDB",
		fmt.Sprintf("INSERT INTO tb_stock SELECT n+1, %d FROM %s WHERE n < %d", amountAtFirst, numbers, f.Sown.Goods),
		fmt.Sprintf("INSERT INTO tb_order SELECT %s, 'cancelling' FROM %s WHERE n < %d", sqlOrder, numbers, f.Sown.Orders))
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
	for n := range f.Sown.Orders {
		key := f.KeyOf(n)
		if applied[key] != effect(n, key) {
			broken("order %d: its row says success is %v, its effect is there is %v", n, applied[key], effect(n, key))
		}
		if applied[key] {
			sku1, q1, sku2, q2 := goods(n, f.Sown.Goods)
			want[sku1] += q1
			want[sku2] += q2
		}
		delete(applied, key)
	}
	if len(applied) > 0 {
		broken("%d rows say success of messages that were never sent", len(applied))
	}
	for sku := range f.Sown.Goods {
		if got := amounts[sku+1]; got != want[sku+1] {
			broken("sku %d got %d back, its applied orders held %d", sku+1, got, want[sku+1])
		}
	}
}

// effects say of each order whether its effect is there, and what each of the goods has got back.
func (f *Field) effects() (has func(n int64, key string) bool, amounts map[int64]int64) {
	if f.Sown.Handler == config.HandlerHTTP {
		known, amounts := f.ground.service.forget()
		return func(_ int64, key string) bool {
			return known[calls.KeyOf(dedup.Identity{Group: Group, Tag: RoutingKey, Key: key})]
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

// answerAfter is how long the service takes for a call.
const answerAfter = time.Millisecond

// service is what handler http calls: it adds to the goods what a call says, once for each key, and answers when its
// time is over. It works in this process, whose CPU is accounted for as the bench's.
type service struct {
	*httptest.Server

	mu      sync.Mutex
	known   map[string]bool // keys that were applied; guarded by mu
	amounts map[int64]int64 // by sku; guarded by mu
}

func startService() *service {
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	return s
}

// forget makes the service know nothing, and says what it has known: the keys that were applied, and what each of the
// goods has got.
func (s *service) forget() (known map[string]bool, amounts map[int64]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, amounts = s.known, s.amounts
	s.known, s.amounts = map[string]bool{}, map[int64]int64{}
	return known, amounts
}

func (s *service) answer(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var call struct {
		Items []struct {
			SKU      int64 `json:"sku_id"`
			Quantity int64 `json:"quantity"`
		} `json:"items"`
	}
	key := r.Header.Get(calls.HeaderKey)
	if err := json.NewDecoder(r.Body).Decode(&call); err != nil || key == "" || len(call.Items) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	if !s.known[key] {
		s.known[key] = true
		for _, it := range call.Items {
			s.amounts[it.SKU] += it.Quantity
		}
	}
	s.mu.Unlock()
	if wait.For(r.Context(), answerAfter-time.Since(began)) == nil {
		w.WriteHeader(http.StatusNoContent)
	}
}
