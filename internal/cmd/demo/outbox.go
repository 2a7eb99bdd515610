package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/poll"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// The size of the story of the outbox.
const (
	placed  = 6_000
	clients = 4                      // that place, pay and cancel at the same time
	kills   = 6                      // of the relay and the daemon in turn
	soonest = 100 * time.Millisecond // after which an order that nobody pays gives its goods back
	latest  = 5 * time.Second        // likewise
	settled = 90 * time.Second       // until which all must have ended
)

const (
	event       = "stock.released"
	eventsQueue = "demo.events"
)

// chain is the whole way: from the order's commit by the outbox and the relay to the daemon, its effect and its event.
type chain struct {
	*demo
	relay *program.Process

	paid, cancelled, late atomic.Int64 // orders; late: the timeout was before the payment
}

// outboxStory tells of orders whose messages go through the outbox while relay and daemon are killed.
func (d *demo) outboxStory() {
	c := &chain{demo: d}
	defer func() {
		if c.relay != nil {
			_ = c.relay.Kill() // what went wrong is told already
		}
	}()
	d.env = append(d.env, config.Prefix+"OUTBOX=on", config.Prefix+"EMIT="+event)
	d.say("rollbackd: %s orders are paid, cancelled, or left to their timeout\n", number(placed))
	d.begin()
	must.Exec(d.ctx, d.pool, shop.OrdersTable)
	must.OK(shop.Stock(d.ctx, d.pool, skus, amount))
	d.initial = d.stock()
	d.say("")
	c.listen()
	must.Side(2, func(side int) {
		if side == 0 {
			c.orders()
		} else {
			c.kill()
		}
	})
	c.settle()
	c.compare()
}

// listen makes the queue of the events.
func (c *chain) listen() {
	conn := must.Get(rabbit.Dial(c.ctx, rabbit.Config{URLs: c.cfg.AMQPURLs, Name: "demo"}))
	defer conn.Close()
	must.Get(rabbit.Declare(c.ctx, conn, rabbit.TopologyConfig{
		Exchange: c.cfg.Exchange, Queue: eventsQueue, RoutingKeys: []string{event}, Delays: c.cfg.RetryDelays,
	}))
}

// orders are placed; a third is paid, a third cancelled, and a third left to its timeout.
func (c *chain) orders() {
	const each = placed / clients
	must.Side(clients, func(client int) {
		rng := rand.New(rand.NewPCG(2, uint64(client)))
		all := c.ordersOf(rng, client, each)
		for i, sale := range all {
			wait := soonest + rand.N(latest-soonest)
			must.OK(sale.Place(c.ctx, c.db, wait))
			if before := i - each/20; before >= 0 {
				c.end(all[before], before)
			}
		}
	})
	c.say("orders       %s placed; %s paid, %s cancelled, %s came too late with their money", number(placed),
		number(int(c.paid.Load())), number(int(c.cancelled.Load())), number(int(c.late.Load())))
}

func (c *chain) ordersOf(rng *rand.Rand, client, n int) (sales []*shop.Sale) {
	for _, o := range shop.Orders(rng, fmt.Sprintf("order-%d", client), n, skus/clients) {
		for i := range o.Items {
			o.Items[i].SKU += int64(client * skus / clients)
		}
		sales = append(sales, &shop.Sale{Order: o, Status: shop.Open})
	}
	return sales
}

// end pays an order, cancels it, or does nothing.
func (c *chain) end(s *shop.Sale, n int) {
	if n%3 == 2 {
		return
	}
	must.OK(s.End(c.ctx, c.db, []string{shop.Paid, shop.Cancelled}[n%3]))
	switch {
	case s.Late:
		c.late.Add(1)
	case s.Status == shop.Paid:
		c.paid.Add(1)
	default:
		c.cancelled.Add(1)
	}
}

// kill starts relay and daemon, kills them in turn, each with SIGKILL, and starts them again.
func (c *chain) kill() {
	c.startDaemon()
	c.startRelay()
	for killed := range kills {
		poll.During(c.ctx, 1500*time.Millisecond, 100*time.Millisecond, func() bool { return false })
		process, again := c.relay, c.startRelay
		if killed%2 == 1 {
			process, again = c.daemon, func() { c.start(&c.daemon, "run") }
		}
		must.OK(process.Signal(syscall.SIGKILL))
		<-process.Exited()
		again()
	}
	c.say("kill -9      %d times, the relay and the daemon in turn, while orders came", kills)
}

func (c *chain) startRelay() { c.start(&c.relay, "relay") }

func (c *chain) start(process **program.Process, command string) {
	*process = must.Get(program.Start(program.Options{Path: c.binary, Args: []string{command}, Env: c.env, Log: &c.log}))
}

// settle waits until nothing waits anywhere, and stops both.
func (c *chain) settle() {
	open := "SELECT (SELECT COUNT(*) FROM rollbackd_outbox) + " +
		"(SELECT COUNT(*) FROM " + c.cfg.LogTable + " WHERE consumer_status IN (0, 2)) + " +
		"(SELECT COUNT(DISTINCT order_sn) FROM stock_reservation WHERE status = 1)"
	ok := poll.During(c.ctx, settled, 100*time.Millisecond, func() bool { return c.number(open) == 0 })
	if !ok {
		must.OK(fmt.Errorf("%d messages or reservations are still open after %v:\n%s", c.number(open), settled,
			c.lastWords()))
	}
	relay := c.relay
	c.relay = nil
	ctx, cancel := context.WithTimeout(c.ctx, time.Minute)
	defer cancel()
	if code, err := relay.Stop(ctx); err != nil || code != 0 {
		must.OK(fmt.Errorf("the relay exited with %d: %w\n%s", code, err, c.lastWords()))
	}
	c.stopDaemon()
}

func (c *chain) number(query string) (n int) {
	must.Rows(c.ctx, c.pool, query, func(scan func(...any)) { scan(&n) })
	return n
}

// compare holds orders, log, stock and events against each other.
func (c *chain) compare() {
	released := c.number("SELECT COUNT(DISTINCT order_sn) FROM stock_reservation WHERE status = 2")
	deducted := c.number("SELECT COUNT(DISTINCT order_sn) FROM stock_reservation WHERE status = 3")
	broken := c.number("SELECT COUNT(DISTINCT order_sn) FROM orders o JOIN stock_reservation r USING (order_sn) " +
		"WHERE (o.status = 'paid') <> (r.status = 3)")
	after := c.stock()
	short := c.initial.Sum().Amount - after.Sum().Amount
	events, copies, strangers := c.events()
	c.say("\noutbox       empty; every one of %s orders is paid for or has given its goods back", number(placed))
	c.say("effects      %s orders deducted, %s released; %d orders differ from their reservations", number(deducted),
		number(released), broken)
	c.say("stock        %s pieces are sold, %s are deducted: exactness of the effect %s", number(int(short)),
		number(int(after.Sum().Deducted)), exactness(short == after.Sum().Deducted && broken == 0))
	c.say("events       %s of %s releases were told, %d by copies too, %d of none: exactness of the events %s",
		number(events), number(released), copies, strangers, exactness(events == released && strangers == 0))
	if short != after.Sum().Deducted || broken > 0 || events != released || strangers > 0 ||
		deducted != int(c.paid.Load()) || released != placed-deducted {
		must.OK(errStock)
	}
}

func exactness(ok bool) string {
	if ok {
		return "1.000000"
	}
	return "BROKEN"
}

// events counts the orders whose release was told, further copies, and what tells of no release. A copy is what a relay
// sent again that was killed before it deleted the row; whoever consumes the events knows it by its key.
func (c *chain) events() (told, copies, strangers int) {
	releases := map[string]bool{} // by the key of the message that released
	must.Rows(c.ctx, c.pool, "SELECT DISTINCT CONCAT(rollback_tag, '/', rollback_key) FROM stock_reservation "+
		"WHERE status = 2", func(scan func(...any)) {
		var key string
		scan(&key)
		releases[key] = false
	})
	conn := must.Get(rabbit.Dial(c.ctx, rabbit.Config{URLs: c.cfg.AMQPURLs, Name: "demo"}))
	defer conn.Close()
	for _, d := range must.Get(oracle.ReadQueue(c.ctx, conn, eventsQueue)) {
		switch seen, known := releases[d.MessageID]; {
		case !known:
			strangers++
		case seen:
			copies++
		default:
			releases[d.MessageID] = true
			told++
		}
	}
	return told, copies, strangers
}
