package oracle

import (
	"fmt"
	"net/url"

	"github.com/rollbackd/rollbackd/internal/test/must"
)

// Chain says where to look for what lies before and behind the consumer log.
type Chain struct {
	Orders string // the table of the orders: order_sn, and status, which is paid or something else
	Outbox string // the table of the outbox
	Told   string // the table with a row of each effect of an event stock.released: event, its key
}

// Ends are what was counted at the ends of the chain.
type Ends struct {
	Orders, Paid  int
	Mismatched    int // orders whose stock is not what their status says
	OutboxLeft    int // rows of the outbox
	Events        int // releases that had the effect of their event
	EventsMissing int // releases without
	EventsDoubled int // effects of events beyond the first of each
}

// String is the counters on one line.
func (e Ends) String() string {
	return fmt.Sprintf("orders %d, of them paid %d, unlike their stock %d, outbox rows left %d, events applied %d, "+
		"events missing %d, events double-applied %d", e.Orders, e.Paid, e.Mismatched, e.OutboxLeft, e.Events,
		e.EventsMissing, e.EventsDoubled)
}

// checkChain is rule 7.
func (j judgement) checkChain() {
	c, e := j.w.Chain, &Ends{}
	if c == nil {
		return
	}
	j.Ends = e
	e.Orders = must.Value[int](j.ctx, j.w.DB, "SELECT COUNT(*) FROM "+c.Orders)
	e.Paid = must.Value[int](j.ctx, j.w.DB, "SELECT COUNT(*) FROM "+c.Orders+" WHERE status = 'paid'")
	must.Rows(j.ctx, j.w.DB, "SELECT o.order_sn, o.status, COUNT(r.sku_id) FROM "+c.Orders+" o LEFT JOIN "+
		"stock_reservation r USING (order_sn) GROUP BY 1, 2 HAVING COUNT(r.sku_id) = 0 OR "+
		"SUM(r.status <> IF(o.status = 'paid', 3, 2)) > 0", func(scan func(...any)) {
		var order, status string
		var items int
		scan(&order, &status, &items)
		e.Mismatched++
		j.find("order", "%s is %s, and the stock has another end for some of its %d items", order, status, items)
	})
	must.Rows(j.ctx, j.w.DB, "SELECT msg_tag, msg_key, COALESCE(reason, '') FROM "+c.Outbox, func(scan func(...any)) {
		var k rowKey
		var reason string
		scan(&k.tag, &k.name, &reason)
		e.OutboxLeft++
		j.find("left in the outbox", "%s/%s (%s)", k.tag, k.name, reason)
	})
	told := map[string]int{}
	must.Rows(j.ctx, j.w.DB, "SELECT event, COUNT(*) FROM "+c.Told+" GROUP BY event", func(scan func(...any)) {
		var event string
		var n int
		scan(&event, &n)
		told[event] = n
		if n > 1 {
			e.EventsDoubled += n - 1
			j.find("event double-applied", "%s %d times", event, n)
		}
	})
	must.Rows(j.ctx, j.w.DB, "SELECT DISTINCT rollback_tag, rollback_key FROM stock_reservation WHERE status = 2",
		func(scan func(...any)) {
			var k rowKey
			scan(&k.tag, &k.name)
			event := url.PathEscape(k.tag) + "/" + k.name
			if told[event] == 0 {
				e.EventsMissing++
				j.find("event missing", "%s/%s has released something", k.tag, k.name)
			} else {
				e.Events++
			}
			delete(told, event)
		})
	for event := range told {
		j.find("event of nothing", "%s, and no such message has released anything", event)
	}
}
