package main

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

const (
	// shelves split the skus, and with them the orders, among as many connections that reserve: orders of two shelves
	// never wait for each other's stock rows.
	shelves = 4
	// ordersPerCommit share a transaction while reserving.
	ordersPerCommit = 200
)

func (d *demo) stock() oracle.Stock { return must.Get(oracle.ReadStock(d.ctx, d.pool)) }

// reserve fills the stock and lets every known order take its goods, as a shop's service does.
func (d *demo) reserve() {
	d.tables.fill(d.ctx, d.pool)
	d.initial = d.stock()
	began := time.Now()
	for shelf := range shelves {
		d.known = append(d.known, d.ordersOf(fmt.Sprintf("order-%d", shelf), shelf, orders/shelves)...)
	}
	const each = orders / shelves
	must.Side(shelves, func(shelf int) { d.reserveAll(d.known[shelf*each : (shelf+1)*each]) })
	d.reserved = d.stock()
	d.unknown = d.ordersOf("late", 0, unknownOrders)
	d.say("reserve      %s orders have taken %s pieces of %d skus, in %.1f s", number(len(d.known)),
		number(d.reserved.Sum().Reserved), skus, time.Since(began).Seconds())
}

// ordersOf makes orders of one shelf's skus.
func (d *demo) ordersOf(prefix string, shelf, n int) []shop.Order {
	made := shop.Orders(d.rng, prefix, n, skus/shelves)
	for _, o := range made {
		for i := range o.Items {
			o.Items[i].SKU += int64(shelf * skus / shelves)
		}
	}
	return made
}

func (d *demo) reserveAll(all []shop.Order) {
	for some := range slices.Chunk(all, ordersPerCommit) {
		must.OK(d.db.WithContext(d.ctx).Transaction(func(tx *gorm.DB) error {
			return must.Catch(func() {
				for _, o := range some {
					d.tables.reserve(d.ctx, tx, o)
				}
			})
		}))
	}
}

// dying are messages of orders that nobody has reserved yet.
func (d *demo) dying(orders []shop.Order) []oracle.Sent {
	sent := d.route.Rollbacks(orders)
	for i := range sent {
		sent[i].Fate = oracle.ToDie(dedup.ReasonExhausted)
	}
	return sent
}

// send publishes messages and waits until they are confirmed.
func (d *demo) send(sent []oracle.Sent, progress func(int)) {
	p := rabbit.NewPublisher(rabbit.Config{URLs: d.cfg.AMQPURLs, Name: rabbit.ConnectionName("demo")})
	defer func() { _ = p.Close(d.ctx) }() // everything is confirmed by then
	must.OK(shop.Publish(d.ctx, p, d.ledger, sent, progress))
}

// publish publishes everything: the good messages, a fifth of them twice and in any order; among them the malformed and
// the unknown ones; at last, when theirs have been applied for sure, the ones whose key another body has.
func (d *demo) publish() {
	sent := shop.Repeat(d.rng, d.route.Rollbacks(d.known), duplicates)
	for i := range malformed {
		sent = append(sent, oracle.Sent{
			Publishing: d.route.Message(fmt.Sprintf("malformed-%d", i),
				[]byte(`{"order_sn":"order-0-000001","items":[{"sku_id":1}]}`)),
			Fate: oracle.ToDie(dedup.ReasonMalformed),
		})
	}
	sent = append(sent, d.dying(d.unknown)...)
	d.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
	d.say("publish      %s messages, %.0f %% of the good ones twice, %d of them bad; the daemon works meanwhile\n",
		number(len(sent)+conflicts), 100*duplicates, malformed+unknownOrders+conflicts)
	p := &progress{d: d, began: time.Now(), shown: time.Now()}
	d.send(sent, p.published)
	d.until("the orders to be applied", time.Minute, progressEvery, func() bool { return p.look() >= orders })
	d.took = time.Since(p.began)
	p.show()
	var late []oracle.Sent
	for _, o := range d.known[:conflicts] {
		late = append(late, oracle.Sent{
			// another service says something else under the same key
			Publishing: d.route.Message(o.Key(), bytes.Replace(o.Body(), []byte(`"reason":"`), []byte(`"reason":"no `), 1)),
			Fate:       oracle.ToDie(dedup.ReasonConflict),
		})
	}
	d.send(late, nil)
}

// await waits until every message has ended. The unknown orders take all their attempts.
func (d *demo) await() { d.ended(orders, malformed+unknownOrders+conflicts) }

// ended waits until so many rows say success and so many say dead.
func (d *demo) ended(applied, dead int) {
	d.until("the last message to end", 30*time.Second, 100*time.Millisecond, func() bool {
		nowApplied, nowDead := d.count()
		return nowApplied == applied && sum(nowDead) == dead
	})
}

// count asks the log how many messages are applied, and how many are dead, by reason.
func (d *demo) count() (applied int, dead map[string]int) {
	dead = map[string]int{}
	must.Rows(d.ctx, d.pool, "SELECT consumer_status, COALESCE(reason, ''), COUNT(*) FROM "+d.cfg.LogTable+
		" GROUP BY 1, 2", func(scan func(...any)) {
		var status dedup.Status
		var reason string
		var n int
		scan(&status, &reason, &n)
		switch status {
		case dedup.Success:
			applied += n
		case dedup.Dead:
			dead[reason] += n
		}
	})
	return applied, dead
}
