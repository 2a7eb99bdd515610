package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
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
}

// fill makes the goods and the orders that have reserved some of them, enough for the whole run.
func (w *world) fill(ctx context.Context) (err error) {
	l := w.load
	l.rng = rand.New(rand.NewPCG(w.o.Seed, 7))
	lasts := w.o.Duration
	if w.o.Round {
		lasts = 5 * time.Minute // on a slow machine
	}
	n := w.o.Rate * int((lasts+5*time.Minute)/time.Second) // 5 minutes for the faults that end late or are tried again
	l.orders = shop.Orders(l.rng, "order", n, skus)
	if err := shop.Stock(ctx, w.db, skus, 100_000_000); err != nil {
		return err
	}
	if err := shop.SeedReserved(ctx, w.db, l.orders); err != nil {
		return err
	}
	w.before, err = oracle.ReadStock(ctx, w.db)
	return err
}

// run publishes until ctx ends and everything it has begun to publish is confirmed.
func (l *load) run(ctx context.Context) error {
	p := rabbit.NewPublisher(rabbit.Config{URLs: l.urls, Name: "chaos producer"})
	work := context.WithoutCancel(ctx)
	defer func() {
		end, cancel := context.WithTimeout(work, patient)
		defer cancel()
		_ = p.Close(end) // everything is confirmed, or the run has failed
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var open []oracle.Sent // published and not confirmed
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return l.finish(work, p, open)
		}
		if len(open) == 0 { // while the broker is away nothing new is made
			open = l.batch(work)
		}
		open = l.publish(work, p, open)
	}
}

// publish returns what was not confirmed.
func (l *load) publish(ctx context.Context, p *rabbit.Publisher, sent []oracle.Sent) (open []oracle.Sent) {
	ctx, cancel := context.WithTimeoutCause(ctx, patient, fmt.Errorf("no confirmation within %v", patient))
	defer cancel()
	batch := make([]rabbit.Publishing, len(sent))
	for i := range sent {
		batch[i] = sent[i].Publishing
	}
	for i, err := range p.Publish(ctx, batch) {
		l.ledger.Record(sent[i], err)
		if err != nil {
			open = append(open, sent[i])
		}
	}
	return open
}

// finish publishes what is open; the faults are over, so it must succeed soon.
func (l *load) finish(ctx context.Context, p *rabbit.Publisher, open []oracle.Sent) error {
	if !until(ctx, 2*time.Minute, func() bool { open = l.publish(ctx, p, open); return len(open) == 0 }) {
		return fmt.Errorf("%d messages could not be published although the faults are over", len(open))
	}
	return nil
}

// batch is what one beat publishes.
func (l *load) batch(ctx context.Context) (sent []oracle.Sent) {
	for range max(1, l.w.o.Rate*int(beat)/int(time.Second)) {
		switch x := l.rng.Float64(); {
		case x < poison && !l.pure.Load():
			sent = append(sent, l.poison(ctx))
		case x < poison+again && l.next > 0:
			sent = append(sent, l.route.Rollback(l.orders[l.rng.IntN(l.next)]))
		case l.next < len(l.orders):
			sent = append(sent, l.route.Rollback(l.orders[l.next]))
			l.next++
		}
	}
	return sent
}

// poison is a message that must end as a dead letter.
func (l *load) poison(ctx context.Context) oracle.Sent {
	l.odd++
	name := fmt.Sprintf("poison-%06d", l.odd)
	dies := func(p rabbit.Publishing, reason dedup.Reason) oracle.Sent {
		return oracle.Sent{Publishing: p, Fate: oracle.ToDie(reason)}
	}
	switch kind := l.rng.IntN(5); {
	case kind == 0:
		return dies(l.route.Message(name, []byte(`{"order_sn":`)), dedup.ReasonMalformed)
	case kind == 1:
		// a name of its own: bodies tell such messages apart
		p := l.route.Message(name, fmt.Appendf(nil, `{"order_sn":"%s"}`, name))
		p.Headers = rabbit.Table{"x-message-key": ""}
		return dies(p, dedup.ReasonUnidentified)
	case kind == 2 && l.next < len(l.orders): // an order that nobody else gives back
		o := l.orders[l.next]
		l.next++
		wrong := shop.Order{SN: o.SN, Items: append(o.Items[:0:0], o.Items...)}
		wrong.Items[0].Quantity += 1000
		// The ledger must know it as poison for good, and duplicates pick from the orders: this one is not theirs.
		l.orders[l.next-1] = l.orders[0]
		return dies(l.route.Message(name, wrong.Body()), dedup.ReasonPermanent)
	case kind == 3 && l.next > 0:
		if key, ok := l.doneKey(ctx); ok {
			return dies(l.route.Message(key, fmt.Appendf(nil, `{"order_sn":"%s"}`, name)), dedup.ReasonConflict)
		}
	}
	// Five attempts end it; a daemon that was killed in each of them would make it "crashed".
	return oracle.Sent{Publishing: l.route.Message("unknown-"+name, fmt.Appendf(nil, `{"order_sn":"unknown-%s"}`, name))}
}

// doneKey is the key of a message that is applied for good, so that another body under it must be a conflict.
func (l *load) doneKey(ctx context.Context) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	key := l.orders[l.rng.IntN(l.next)].Key()
	var done bool
	err := l.w.db.QueryRowContext(ctx, "SELECT consumer_status = 1 FROM consumer_log WHERE group_name = ? AND msg_tag = "+
		"? AND msg_key = ?",
		[]byte(l.w.oracle.Group), []byte(l.route.Key), []byte(key)).Scan(&done)
	return key, err == nil && done // a database that is down just now makes no conflict
}
