package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

const (
	again   = .10 // of the messages are a second copy of an earlier one
	poison  = .01 // of them cannot be applied
	beat    = 100 * time.Millisecond
	patient = 10 * time.Second // for one batch's confirmations
)

// load publishes messages until it is told to stop. What was not confirmed is published again, for as long as it takes:
// the producer keeps its half of the promise.
type load struct {
	w      *world
	urls   []string
	route  shop.Route
	ledger *oracle.Ledger
	orders []shop.Order // what is reserved
	next   int          // the first order not yet published
	odd    int          // numbers the poison
	rng    *rand.Rand
	pure   atomic.Bool // no poison for now

	mu sync.Mutex
	at map[string]time.Time // when messages were published; nil: nobody asks. Guarded by mu
}

// timed lets at take from now on when each message is published for the first time, nil: nothing does, and returns what
// did so before.
func (l *load) timed(at map[string]time.Time) (before map[string]time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, l.at = l.at, at
	return before
}

func (l *load) note(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != nil {
		l.at[key] = time.Now()
	}
}

// fill makes the goods and the orders that have reserved some of them, enough for the whole run.
func (w *world) fill() {
	l := w.load
	l.rng = rand.New(rand.NewPCG(w.o.Seed, 7))
	lasts := w.o.Duration
	if w.o.Round {
		lasts = 5 * time.Minute // on a slow machine
	}
	n := w.o.Rate * int((lasts+5*time.Minute)/time.Second) // 5 minutes for the faults that end late or are tried again
	l.orders = shop.Orders(l.rng, "order", n, skus)
	must.OK(shop.Stock(w.ctx, w.db, skus, 100_000_000))
	must.OK(shop.SeedReserved(w.ctx, w.db, l.orders))
	w.before = must.Get(oracle.ReadStock(w.ctx, w.db))
}

// run publishes until stop ends and everything it has begun to publish is confirmed.
func (l *load) run(stop context.Context) {
	p := rabbit.NewPublisher(rabbit.Config{URLs: l.urls, Name: "chaos producer"})
	work := context.WithoutCancel(stop)
	defer func() {
		end, cancel := context.WithTimeout(work, patient)
		defer cancel()
		_ = p.Close(end) // everything is confirmed, or the run has failed
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var open []oracle.Sent // published and not confirmed
	for stop.Err() == nil {
		if len(open) == 0 { // while the broker is away nothing new is made
			open = l.batch()
		}
		open = l.publish(work, p, open)
		select {
		case <-tick.C:
		case <-stop.Done():
		}
	}
	l.w.wait(2*time.Minute, "not all is published although the faults are over", func() error {
		open = l.publish(work, p, open)
		return none(len(open), nil, "messages are not confirmed")
	})
}

// publish returns what was not confirmed.
func (l *load) publish(ctx context.Context, p *rabbit.Publisher, sent []oracle.Sent) (open []oracle.Sent) {
	ctx, cancel := context.WithTimeoutCause(ctx, patient, fmt.Errorf("no confirmation within %v", patient))
	defer cancel()
	open, _ = l.ledger.Publish(ctx, p, sent)
	return open
}

// batch is what one beat publishes.
func (l *load) batch() (sent []oracle.Sent) {
	for range max(1, l.w.o.Rate*int(beat)/int(time.Second)) {
		switch x := l.rng.Float64(); {
		case x < poison && !l.pure.Load():
			sent = append(sent, l.poison())
		case x < poison+again && l.next > 0:
			sent = append(sent, l.route.Rollback(l.orders[l.rng.IntN(l.next)]))
		case l.next < len(l.orders):
			sent = append(sent, l.route.Rollback(l.orders[l.next]))
			l.note(l.orders[l.next].Key())
			l.next++
		}
	}
	return sent
}

// poison is a message that must end as a dead letter.
func (l *load) poison() oracle.Sent {
	l.odd++
	name := fmt.Sprintf("poison-%06d", l.odd)
	dies := func(reason dedup.Reason, key string, body []byte) oracle.Sent {
		return oracle.Sent{Publishing: l.route.Message(key, body), Fate: oracle.ToDie(reason)}
	}
	own := fmt.Appendf(nil, `{"order_sn":"%s"}`, name)
	switch kind := l.rng.IntN(5); {
	case kind == 0:
		return dies(dedup.ReasonMalformed, name, []byte(`{"order_sn":`))
	case kind == 1: // bodies tell such messages apart
		s := dies(dedup.ReasonUnidentified, name, own)
		s.Headers = rabbit.Table{"x-message-key": ""}
		return s
	case kind == 2 && l.next < len(l.orders): // an order that nobody else gives back
		wrong := l.orders[l.next]
		wrong.Items = slices.Clone(wrong.Items)
		wrong.Items[0].Quantity += 1000
		// The ledger must know it as poison for good, and duplicates pick from the orders: this one is not theirs.
		l.orders[l.next] = l.orders[0]
		l.next++
		return dies(dedup.ReasonPermanent, name, wrong.Body())
	case kind == 3 && l.next > 0:
		// another body under the key of a message that is applied for good is a conflict
		key, done := l.orders[l.rng.IntN(l.next)].Key(), false
		if l.w.ask(&done, "SELECT consumer_status = 1 FROM consumer_log WHERE group_name = ? AND msg_tag = ? AND msg_key = ?",
			[]byte(l.w.oracle.Group), []byte(l.route.Key), []byte(key)) == nil && done {
			return dies(dedup.ReasonConflict, key, own)
		}
	}
	return l.unknown(name)
}

// unknown is a message of an order that nobody knows. Five attempts end it; a daemon that was killed in each of them
// would make it "crashed".
func (l *load) unknown(name string) oracle.Sent {
	return oracle.Sent{Publishing: l.route.Message("unknown-"+name, fmt.Appendf(nil, `{"order_sn":"unknown-%s"}`, name))}
}

const (
	relays = 2
	lease  = 30 * time.Second // of what a relay has claimed

	seller   = "seller"         // the order service, and its account
	listener = "listener"       // the service that hears of what was released, and its schema
	event    = "stock.released" // what it hears, and its queue

	clerks = 4                // who place orders, and end them, at the same time
	share  = 5                // for so many messages of the load one order is placed
	memory = 20               // so many orders later a clerk ends one
	latest = 15 * time.Second // of a timeout, beyond a second: some come before an order ends, and most are taken back
)

// chain is what lies before and behind the daemons: an order service that puts its messages into the outbox, relays,
// and a service that applies each event, in a schema of its own.
type chain struct {
	db *gorm.DB // of the order service

	relays, listens, asListener []string // environments: of relays, of the listener, and with an account that may migrate
}

// openChain makes what the two services have of their own. root is how the shop is reached.
func (w *world) openChain(root *mysql.Config) {
	c := &w.chain
	asRoot, asUser, asSeller := root.Clone(), root.Clone(), root.Clone()
	asRoot.DBName, asUser.DBName = listener, listener
	asUser.User, asUser.Passwd, asUser.Addr = user, user, w.links[mysqld][0].Addr
	asSeller.User, asSeller.Passwd, asSeller.Addr = seller, seller, w.links[orders][0].Addr
	w.exec("CREATE DATABASE "+listener, "GRANT ALL ON "+listener+".* TO "+account, "CREATE TABLE "+listener+".told ("+
		"id BIGINT AUTO_INCREMENT PRIMARY KEY, event VARBINARY(255) NOT NULL) ENGINE=InnoDB",
		"CREATE USER "+seller+" IDENTIFIED BY '"+seller+"'", "GRANT ALL ON "+database+".* TO "+seller, shop.OrdersTable)
	file := filepath.Join(w.o.LogDir, "listener.sql")
	must.OK(os.WriteFile(file, []byte("INSERT INTO told (event) VALUES (:rollbackd_key);\n"), 0o600))
	c.listens = append(slices.Clone(w.environ), "ROLLBACKD_GROUP="+listener, "ROLLBACKD_QUEUE="+event,
		"ROLLBACKD_ROUTING_KEYS="+event, "ROLLBACKD_REDIS_URL=off", "ROLLBACKD_HANDLER=sql", "ROLLBACKD_EMIT=off",
		"ROLLBACKD_SQL_FILE="+file, "ROLLBACKD_MYSQL_DSN="+asUser.FormatDSN())
	c.asListener = append(slices.Clone(c.listens), "ROLLBACKD_MYSQL_DSN="+asRoot.FormatDSN())
	c.relays = slices.Clone(w.environ)
	for i, env := range c.relays {
		for j, l := range slices.Concat(w.links[rabbitmq], w.links[mysqld]) {
			env = strings.Replace(env, l.Addr, w.links[outbox][j].Addr, 1)
		}
		c.relays[i] = env
	}
	var err error
	c.db, _, err = dedup.Open(w.ctx, asSeller.FormatDSN(), dedup.OpenOptions{
		Program: seller, MaxOpen: clerks, LockWait: 2 * time.Second, ReadTimeout: patient,
	})
	must.OK(err, "open the order service's pool")
	w.closes = append(w.closes, must.Get(c.db.DB()).Close)
}

// clerk is one of the order service, until stop ends. A third of the orders is paid, a third cancelled, a third left to
// its timeout, and some never come to be.
func (w *world) clerk(stop context.Context, clerk int) {
	rng := rand.New(rand.NewPCG(w.o.Seed, uint64(10+clerk)))
	tick := time.NewTicker(clerks * share * time.Second / time.Duration(w.o.Rate))
	defer tick.Stop()
	var sales []*shop.Sale
	for ; stop.Err() == nil; <-tick.C {
		n := len(sales)
		sale := &shop.Sale{Order: shop.Orders(rng, fmt.Sprintf("sale-%d-%06d", clerk, n), 1, skus)[0], Status: shop.Open}
		if sales = append(sales, sale); n%memory == 0 {
			never := *sale
			never.SN = "never-" + sale.SN
			w.insist(func(ctx context.Context) error { return never.Abandon(ctx, w.chain.db) })
		}
		timeout := time.Second + upTo(rng, latest)
		w.insist(func(ctx context.Context) error { return sale.Place(ctx, w.chain.db, timeout) })
		ended := []string{shop.Paid, shop.Cancelled, shop.Open}[rng.IntN(3)]
		if n >= memory && ended != shop.Open {
			w.insist(func(ctx context.Context) error { return sales[n-memory].End(ctx, w.chain.db, ended) })
		}
	}
	for _, s := range sales {
		w.recordSale(s)
	}
}

// insist does a step of an order again until its answer comes, as a service does that keeps its half of the promise.
func (w *world) insist(step func(context.Context) error) {
	w.wait(5*time.Minute, "an order could not be served", func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), patient)
		defer cancel()
		return step(ctx)
	})
}

// recordSale writes down which messages of an order were committed, and what must become of them. What was taken back
// in time, or was rolled back, is unknown to the ledger: the oracle finds what was sent all the same.
func (w *world) recordSale(s *shop.Sale) {
	record := func(tag string, fate oracle.Fate) {
		m := s.Message(tag, 0)
		w.load.ledger.Record(oracle.Sent{Fate: fate, Order: s.SN, Publishing: rabbit.Publishing{
			Key: w.load.route.Key, Message: rabbit.Message{MessageID: m.Key, Type: m.Tag, Body: m.Body},
		}}, nil)
	}
	if !s.InTime && s.Status == shop.Paid {
		record(shop.TagTimeout, oracle.ToDie(dedup.ReasonPermanent)) // the goods are sold
	} else if !s.InTime {
		record(shop.TagTimeout, oracle.ToBeApplied())
	}
	if s.Status == shop.Cancelled {
		record(shop.TagCancel, oracle.ToBeApplied())
	}
}

// claims counts what a relay had claimed when it was stopped, and has not settled.
func (s *strike) claims(stopped time.Time) (n int) {
	_ = s.pass(300 * time.Millisecond) // by then the other one has settled what it had claimed before
	const form = "2006-01-02 15:04:05.000000"
	latest := stopped.UTC().Add(lease)
	_ = s.ask(&n, "SELECT COUNT(*) FROM rollbackd_outbox WHERE owner IS NOT NULL AND reason IS NULL AND "+
		"next_at BETWEEN ? AND ?", latest.Add(-time.Second).Format(form), latest.Format(form))
	return n
}

// unbindEvents takes the listener's queue off its exchange, until it is migrated once more.
func unbindEvents(s *strike) {
	s.undo = func() { s.migrates(s.chain.asListener) }
	must.Get(s.eval(fmt.Sprintf(`[rabbit_binding:remove(B, <<"chaos">>) || B <- rabbit_binding:list_for_destination(
		rabbit_misc:r(<<"/">>, queue, <<"%s">>)), element(4, element(2, B)) =/= <<>>], ok`, event)))
}

// fullEvents lets nobody empty the listener's queue, which refuses what it has no room for.
func fullEvents(s *strike) {
	s.process = s.fleet.listener.present(false)
	_ = s.process.Signal(syscall.SIGSTOP) // fails only when it has ended
	s.bound(event, 1)
}

// refusedEvents counts the rows of the outbox that RabbitMQ did not take.
func refusedEvents(s *strike) (n int) {
	_ = s.ask(&n, "SELECT COUNT(*) FROM rollbackd_outbox WHERE reason IS NOT NULL")
	return n
}
