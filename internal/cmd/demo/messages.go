package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
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

// reserve fills the stock and lets every known order take its goods, as a shop's service does.
func (d *demo) reserve(ctx context.Context) (err error) {
	if err := d.tables.fill(ctx, d.pool); err != nil {
		return err
	}
	if d.initial, err = oracle.ReadStock(ctx, d.pool); err != nil {
		return err
	}
	began := time.Now()
	var (
		wg   sync.WaitGroup
		errs [shelves]error
	)
	for shelf := range shelves {
		known := d.ordersOf(fmt.Sprintf("order-%d", shelf), shelf, orders/shelves)
		d.known = append(d.known, known...)
		wg.Go(func() { errs[shelf] = d.reserveAll(ctx, known) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	if d.reserved, err = oracle.ReadStock(ctx, d.pool); err != nil {
		return err
	}
	d.unknown = d.ordersOf("late", 0, unknownOrders)
	d.say("reserve      %s orders have taken %s pieces of %d skus, in %.1f s", number(len(d.known)),
		number(d.reserved.Sum().Reserved), skus, time.Since(began).Seconds())
	return nil
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

func (d *demo) reserveAll(ctx context.Context, all []shop.Order) error {
	for some := range slices.Chunk(all, ordersPerCommit) {
		err := d.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
			for _, o := range some {
				if err := d.tables.reserve(ctx, tx, o); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// publish publishes everything: the good messages, a fifth of them twice and in any order; among them the malformed and
// the unknown ones; at last, when theirs have been applied for sure, the ones whose key another body has.
func (d *demo) publish(ctx context.Context) error {
	route := shop.Route{Exchange: d.cfg.Exchange, Key: d.cfg.RoutingKeys[0]}
	sent := shop.Repeat(d.rng, route.Rollbacks(d.known), duplicates)
	for i := range malformed {
		sent = append(sent, oracle.Sent{
			Publishing: route.Message(fmt.Sprintf("malformed-%d", i),
				[]byte(`{"order_sn":"order-0-000001","items":[{"sku_id":1}]}`)),
			Fate: oracle.ToDie(dedup.ReasonMalformed),
		})
	}
	for _, o := range d.unknown {
		s := route.Rollback(o)
		s.Fate = oracle.ToDie(dedup.ReasonExhausted)
		sent = append(sent, s)
	}
	d.rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })

	p := rabbit.NewPublisher(rabbit.Config{URLs: d.cfg.AMQPURLs, Name: rabbit.ConnectionName("demo")})
	defer func() { _ = p.Close(ctx) }() // everything is confirmed by then
	d.say("publish      %s messages, %.0f %% of the good ones twice, %d of them bad; the daemon works meanwhile\n",
		number(len(sent)+conflicts), 100*duplicates, malformed+unknownOrders+conflicts)
	watch := d.watch(ctx)
	d.began = time.Now()
	err := shop.Publish(ctx, p, d.ledger, sent, watch.published)
	if err == nil {
		err = d.until(ctx, time.Minute, progressEvery, func() (bool, error) {
			seen, err := watch.look(ctx)
			return seen.applied >= orders, err
		})
		d.took = time.Since(d.began)
	}
	watch.end()
	if err != nil {
		return fmt.Errorf("%w; the daemon's last words:\n%s", err, d.lastWords())
	}
	var late []oracle.Sent
	for _, o := range d.known[:conflicts] {
		late = append(late, oracle.Sent{
			// another service says something else under the same key
			Publishing: route.Message(o.Key(), bytes.Replace(o.Body(), []byte(`"reason":"`), []byte(`"reason":"no `), 1)),
			Fate:       oracle.ToDie(dedup.ReasonConflict),
		})
	}
	return shop.Publish(ctx, p, d.ledger, late, nil)
}

// await waits until every message has ended. The unknown orders take all their attempts.
func (d *demo) await(ctx context.Context) error {
	err := d.ended(ctx, orders, malformed+unknownOrders+conflicts)
	if err != nil {
		return fmt.Errorf("wait for the last dead letter: %w", err)
	}
	return nil
}

// ended waits until so many rows say success and so many say dead.
func (d *demo) ended(ctx context.Context, applied, dead int) error {
	const patience = 30 * time.Second
	return d.until(ctx, patience, 100*time.Millisecond, func() (bool, error) {
		now, err := d.count(ctx)
		return now.applied == applied && now.dead == dead, err
	})
}

// count asks the log.
func (d *demo) count(ctx context.Context) (rows struct{ applied, dead int }, err error) {
	err = d.pool.QueryRowContext(ctx, "SELECT COALESCE(SUM(consumer_status = ?), 0), COALESCE(SUM(consumer_status = ?), "+
		"0) FROM "+d.cfg.LogTable,
		int(dedup.Success), int(dedup.Dead)).Scan(&rows.applied, &rows.dead)
	if err != nil {
		return rows, fmt.Errorf("count the rows: %w", err)
	}
	return rows, nil
}
