package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
)

// lossy is how many messages each part of the run has.
const lossy = 300

// lose lets a failover lose commits: MySQL's asynchronous replication, whose source dies while the replica lags, and
// had been told for a while to leave tables out, as an operator does by mistake. Then it mends what can be mended.
func (w *world) lose() {
	l := &loser{world: w, p: rabbit.NewPublisher(rabbit.Config{URLs: w.load.urls, Name: "shop"})}
	defer func() { _ = l.p.Close(context.WithoutCancel(w.ctx)) }() // everything is confirmed, or the run has failed
	must.OK(w.fleet.consuming())
	w.oracle.Chain = nil // what a failover loses of the outbox and of events is not mended
	replayed := l.diverge()
	l.failOver()
	l.check(maxAttempts)
	l.want("messages without a row", l.report.Lost, 2*lossy)
	l.want("duplicated effects", l.report.DuplicatedEffects, 0)
	found, _ := l.reconciled()
	l.want("found: released_without_success", found["released_without_success"], lossy)
	l.want("found: success_not_released, where the key is the order's number", found["success_not_released"], lossy/2)
	l.want("found: dead_without_letter", found["dead_without_letter"], replayed)
	l.mend()
	l.check(maxAttempts)
}

// loser is such a run.
type loser struct {
	*world
	p    *rabbit.Publisher
	sent []oracle.Sent
}

// want tells how much was lost, found or mended of a kind, which this run decides.
func (l *loser) want(what string, got, want int) {
	l.say("%s: %d", what, got)
	if got != want {
		l.violation("%s: %d, want %d", what, got, want)
	}
}

// publish publishes messages and waits until nothing is left to do.
func (l *loser) publish(sent []oracle.Sent) {
	must.OK(shop.Publish(l.ctx, l.p, l.load.ledger, sent, nil))
	l.rest()
}

// rest waits until nobody holds a message and none is under way. RabbitMQ's own counts of quorum queues may be five
// seconds old; what a queue answers to who declares it is not.
func (l *loser) rest() {
	look := func() error {
		for _, name := range (rabbit.TopologyConfig{Queue: queue, Delays: retryDelays}).Queues() {
			if name == rabbit.DeadQueue(queue) {
				continue
			}
			n, err := l.depth(name)
			if err := none(n, err, "messages are in "+name); err != nil {
				return err
			}
		}
		n, err := l.erlang(unackedNow)
		return errors.Join(none(n, err, "deliveries are unacked"), l.noOpenRow())
	}
	l.wait(2*time.Minute, "not at rest", func() error {
		if err := look(); err != nil {
			return err
		}
		return look() // twice, because a message may move between two looks
	})
	l.quiet() // the oracle asks the queues, not the channels
}

// next are the messages of the next orders; the keys of every second one are the orders' numbers.
func (l *loser) next() (sent []oracle.Sent) {
	for i, o := range l.load.orders[l.load.next : l.load.next+lossy] {
		s := l.load.route.Rollback(o)
		if i%2 == 0 {
			s.MessageID = o.SN
		}
		sent = append(sent, s)
	}
	l.load.next += lossy
	l.sent = append(l.sent, sent...)
	return sent
}

// diverge lets messages be applied while the replica gets all, no row of the log, nothing of the stock, and nothing, so
// many of each, and says how many letters were replayed while it got nothing.
func (l *loser) diverge() (replayed int) {
	late := shop.Orders(l.load.rng, "late", lossy/10, skus)
	l.sent = l.load.route.Rollbacks(late)
	rollbacks := l.sent
	l.publish(l.next())
	l.publish(rollbacks)
	// what they had not reserved when their rollback died, they have by now
	must.OK(shop.SeedReserved(l.ctx, l.db, late))
	for _, leftOut := range [][]string{
		{"consumer_log", "consumer_log_event"}, {"stock", "stock_reservation", "oracle_release"}, {},
	} {
		for i, table := range leftOut {
			leftOut[i] = database + "." + table
		}
		l.stack.Level(l.ctx, 0)
		l.stack.LeaveOut(l.ctx, 1, leftOut...)
		if len(leftOut) == 0 {
			must.OK(l.stack.CutOff(l.ctx, l.stack.Databases[0]))
		}
		l.publish(l.next())
	}
	var res struct{ Replayed int }
	must.OK(l.command(l.ctx, &res, "dlq", "replay", "--all", "--force"))
	l.say("%d messages are applied and acked, %d of them after a replay", 4*lossy+res.Replayed, res.Replayed)
	l.rest()
	return res.Replayed
}

// failOver kills the source, and promotes the replica that lags.
func (l *loser) failOver() {
	must.OK(l.stack.Databases[0].Kill())
	at := l.stack.Promote(l.ctx, 0)
	l.say("%s is the source now", l.stack.Databases[at].NodeName())
	must.OK(l.fleet.consuming())
	l.rest()
}

// reconciled is what reconcile finds and does not mend, by kind and in all.
func (l *loser) reconciled(args ...string) (open map[string]int, left findings) {
	all, err := l.reconcile(l.ctx, args...)
	if len(all) == 0 { // else the error says that they are there
		must.OK(err)
	}
	open = map[string]int{}
	for _, f := range all {
		if !f.Mended {
			open[f.Kind]++
			left = append(left, f)
		}
	}
	return open, left
}

// mend does what a shop must: what reconcile can mend, what it prints, all events of the time again, and what only the
// events show.
func (l *loser) mend() {
	_, left := l.reconciled("--adopt", "--republish")
	l.rest()
	for _, f := range left {
		// printf '%s\n' 'BODY' | NAME publish --key-field repair --tag repair
		_, body, ok := strings.Cut(f.Cure, `'%s\n' '`)
		body, _, ends := strings.Cut(body, `' | `)
		if !ok || !ends {
			must.OK(fmt.Errorf("reconcile prints for %s: %s", f.Kind, f.Cure))
		}
		l.repair([]byte(body))
	}
	l.rest()
	again, _ := l.reconciled()
	l.want("kinds found again", len(again), 0)
	had := l.applied()
	l.publish(l.sent)
	l.want("messages sent again that had an effect", l.applied()-had, lossy) // those that no server knew of any more
	unseen := 0
	// What the shop knows: these orders are over, and still have something reserved.
	for _, s := range l.sent {
		var reserved int
		must.OK(l.ask(&reserved, "SELECT COUNT(*) FROM stock_reservation WHERE order_sn = ? AND status = 1", []byte(s.Order)))
		if reserved > 0 {
			unseen++
			l.repair(fmt.Appendf(nil, `{"order_sn":%q,"repair":"shop/%s"}`, s.Order, s.Order))
		}
	}
	l.want("orders that only the shop's events show", unseen, lossy/2)
	l.rest()
	l.fleet.drain()
}

// repair publishes a message that gives back what an order still has reserved, under an identity of its own.
func (l *loser) repair(body []byte) {
	var said struct {
		Order  string `json:"order_sn"`
		Repair string
	}
	must.OK(json.Unmarshal(body, &said), "read ", string(body))
	s := oracle.Sent{Publishing: l.load.route.Message(said.Repair, body), Fate: oracle.ToBeApplied(), Order: said.Order}
	s.Type = "repair"
	must.OK(shop.Publish(l.ctx, l.p, l.load.ledger, []oracle.Sent{s}, nil))
}
