package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
func (l *load) run(stop context.Context) error {
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
	if !l.w.until(2*time.Minute, func() bool { open = l.publish(work, p, open); return len(open) == 0 }) {
		return fmt.Errorf("%d messages could not be published although the faults are over", len(open))
	}
	return nil
}

// publish returns what was not confirmed.
func (l *load) publish(ctx context.Context, p *rabbit.Publisher, sent []oracle.Sent) (open []oracle.Sent) {
	ctx, cancel := context.WithTimeoutCause(ctx, patient, fmt.Errorf("no confirmation within %v", patient))
	defer cancel()
	_, _ = l.ledger.Publish(func(batch []rabbit.Publishing) []error {
		errs := p.Publish(ctx, batch)
		for i, err := range errs {
			if err != nil {
				open = append(open, sent[i])
			}
		}
		return errs
	}, sent)
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
