package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// job is what somebody does again and again, beside the load and the faults.
type job struct {
	name, unit string
	rest       int // seconds after each time
	// do does it once and says how much it did. A server may be away meanwhile: an error is no violation.
	do func(ctx context.Context, w *world) int
}

// overdue is longer than any message that is under way needs, unless a fault holds it up.
const overdue = 15 * time.Second

// jobs are what people do to dead letters and rows, and what the daemons do by themselves.
func (p Phase) jobs() []job {
	if !p.people {
		return nil
	}
	// The daemons' compensation gets what may pass, when nobody else is faster.
	cannotPass := []string{"--window", "50"}
	for _, reason := range []dedup.Reason{
		dedup.ReasonMalformed, dedup.ReasonPermanent, dedup.ReasonConflict, dedup.ReasonUnidentified,
	} {
		cannotPass = append(cannotPass, "--reason", string(reason))
	}
	return []job{
		{"dlq replay", "letters", 3, replay(cannotPass...)},
		{"dlq replay --no-wait", "letters", 12, replay("--all", "--no-wait")},
		{"dlq replay, killed", "processes", 8, killReplay},
		{"compensation", "letters", 5, countCompensated},
		{"reconcile --republish", "messages", 3, reconcileAll},
		{"log prune", "rows", 2, prune},
		{"dead-letter queue purged", "letters", 12, purge},
		{"letters moved by hand", "letters", 6, move},
	}
}

// startPeople lets each job be done again and again until end, in the phase that has people. end waits until nobody
// does anything any more.
func (w *world) startPeople() (end func()) {
	const atMost = 3 * time.Minute // longer than any fault, and than a look at all orders of an hour
	ctx, stop := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	for _, j := range w.o.Phase.jobs() {
		wg.Go(func() {
			for wait.For(ctx, seconds(j.rest)) == nil {
				work, cancel := context.WithTimeout(context.WithoutCancel(ctx), atMost) // what was begun is ended
				n := 0
				err := must.Catch(func() { n = j.do(work, w) })
				cancel()
				w.count(j.name, n, err)
			}
		})
	}
	return func() { stop(); wg.Wait() }
}

// untilAllHit waits until people have done something of each: the faults may have been over too soon.
func (w *world) untilAllHit() {
	w.until(2*time.Minute, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !slices.ContainsFunc(w.tallies, func(t *tally) bool { return t.job && t.hit == 0 })
	})
}

// command runs a command of the binary through the same links as the daemons, and reads its JSON into result.
func (w *world) command(ctx context.Context, result any, args ...string) error {
	out, err := program.Run(ctx, w.o.Binary, w.environ, append(args, "-o", "json")...)
	if _, text, ok := strings.Cut(out, "{"); ok {
		err = errors.Join(err, json.NewDecoder(strings.NewReader("{"+text)).Decode(result))
	}
	return err
}

// replay puts letters back to work.
func replay(args ...string) func(context.Context, *world) int {
	return func(ctx context.Context, w *world) int {
		var res struct{ Replayed int }
		must.OK(w.command(ctx, &res, append([]string{"dlq", "replay", "--force"}, args...)...))
		return res.Replayed
	}
}

// killReplay lets a replay live for a moment only, a longer one each time.
func killReplay(ctx context.Context, w *world) int {
	w.killed++
	const least, step, steps = 100 * time.Millisecond, 50 * time.Millisecond, 10
	ctx, cancel := context.WithTimeout(ctx, least+time.Duration(w.killed%steps)*step)
	defer cancel()
	_, err := program.Run(ctx, w.o.Binary, w.environ, "dlq", "replay", "--all", "--force")
	if ctx.Err() != nil {
		return 1
	}
	must.OK(err)
	return 0
}

// countCompensated counts what the daemons have replayed by themselves since it was last asked.
func countCompensated(ctx context.Context, w *world) int {
	n := must.Value[int](ctx, w.db, "SELECT COUNT(*) FROM consumer_log_event WHERE `by` LIKE 'compensation by %'")
	fresh := n - w.compensated
	w.compensated = n
	return fresh
}

// findings are what reconcile has found.
type findings []struct {
	Kind     string
	Tag, Key string
	Cure     string // as a command
	Mended   bool
}

func (w *world) reconcile(ctx context.Context, args ...string) (findings, error) {
	var res struct{ Findings findings }
	err := w.command(ctx, &res, append([]string{"reconcile"}, args...)...)
	return res.Findings, err
}

// reconcileAll sends again what was purged, and ends replays that were killed, as their cure says. What moves meanwhile
// it leaves alone.
func reconcileAll(ctx context.Context, w *world) (mended int) {
	found, err := w.reconcile(ctx, "--adopt", "--republish", "--overdue", overdue.String())
	for _, f := range found {
		if f.Mended {
			mended++
		}
		if f.Kind == "interrupted_replay" {
			again := w.command(ctx, &struct{}{}, "dlq", "replay", "--force", "--no-wait", "--tag", f.Tag, "--key", f.Key)
			err = errors.Join(err, again)
		}
	}
	must.OK(err)
	return mended
}

// prune deletes rows that are old enough, which it makes first.
func prune(ctx context.Context, w *world) (n int) {
	must.Exec(ctx, w.db, `INSERT INTO consumer_log (group_name, msg_tag, msg_key, body_hash, consumer_status,
		consumer_times, consumer_timestamp, created_at)
		WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100)
		SELECT '`+w.oracle.Group+`', 'stock.rollback', CONCAT('aged-', UUID()), REPEAT('h', 32), 1, 1,
		UTC_TIMESTAMP(6) - INTERVAL 40 DAY, UTC_TIMESTAMP(6) - INTERVAL 40 DAY FROM n`)
	var res struct{ Rows []struct{ Rows int } }
	must.OK(w.command(ctx, &res, "log", "prune"))
	for _, r := range res.Rows {
		n += r.Rows
	}
	return n
}

func purge(_ context.Context, w *world) int {
	return must.Get(w.erlang(lookUp(rabbit.DeadQueue(queue)) + ", {ok, N} = rabbit_amqqueue:purge(Q), N"))
}

// move puts some letters on the main queue as they are, as a shovel does.
func move(ctx context.Context, w *world) (moved int) {
	const most = 5
	config := rabbit.Config{URLs: w.load.urls, Name: "chaos shovel"}
	conn := must.Get(rabbit.Dial(ctx, config))
	defer conn.Close()
	p := rabbit.NewPublisher(config)
	defer func() { _ = p.Close(context.WithoutCancel(ctx)) }() // all is confirmed, or has failed
	sub := must.Get(conn.Consume(ctx, rabbit.DeadQueue(queue), "shovel", most))
	defer func() { _ = sub.Close() }()                      // it ends with its connection
	soon, cancel := context.WithTimeout(ctx, 2*time.Second) // the queue may be empty
	defer cancel()
	letters, _ := sub.Collect(soon, most, 100*time.Millisecond, nil)
	for _, d := range letters {
		must.OK(errors.Join(p.Publish(ctx, []rabbit.Publishing{{Key: queue, Message: d.Message}})...))
		moved++
		must.OK(sub.Ack(d.Tag, false)) // else both copies are there now
	}
	return moved
}

// tidy is what a good operator does in the end: compensation off, the daemons restarted one after the other, old rows
// deleted, and what was purged sent again, until reconcile finds nothing to mend.
func (w *world) tidy() {
	// What failed fails again, all of it together; a brake would only hold it back until it is overdue.
	w.fleet.restart(append(slices.Clone(w.environ), "ROLLBACKD_MAX_DEAD_RATE=off"))
	w.should("in the end", func() {
		w.wait(3*time.Minute, "reconcile does not come to an end", func() (last error) {
			pruned := must.Catch(func() { prune(w.ctx, w) })
			disagrees := must.Catch(func() { reconcileAll(w.ctx, w) })
			w.until(2*overdue, func() bool { last = w.idle(); return last == nil })
			return errors.Join(last, pruned, disagrees)
		})
	})
}

// lossy is how many messages each part of the run has.
const lossy = 300

// lose lets a failover lose commits: MySQL's asynchronous replication, whose source dies while the replica lags, and
// had been told for a while to leave tables out, as an operator does by mistake. Then it mends what can be mended.
func (w *world) lose() {
	l := &loser{world: w, p: rabbit.NewPublisher(rabbit.Config{URLs: w.load.urls, Name: "shop"})}
	defer func() { _ = l.p.Close(context.WithoutCancel(w.ctx)) }() // everything is confirmed, or the run has failed
	w.fleet.consuming()
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
	// twice, because a message may move between two looks
	l.wait(2*time.Minute, "not at rest", func() error { return errors.Join(look(), look()) })
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
	replayed = replay("--all")(l.ctx, l.world)
	l.say("%d messages are applied and acked, %d of them after a replay", 4*lossy+replayed, replayed)
	l.rest()
	return replayed
}

// failOver kills the source, and promotes the replica that lags.
func (l *loser) failOver() {
	must.OK(l.stack.Databases[0].Kill())
	at := l.stack.Promote(l.ctx, 0)
	l.say("%s is the source now", l.stack.Databases[at].NodeName())
	l.fleet.consuming()
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
