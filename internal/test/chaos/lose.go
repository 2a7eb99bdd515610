package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/oracle"
	"github.com/rollbackd/rollbackd/internal/test/shop"
	"github.com/rollbackd/rollbackd/internal/test/stack"
)

// Losses are what a failover has lost, what was found of it, and what came of mending.
type Losses struct {
	// Sent is how many messages were applied and acked while the replica got all of them, none, no row of the log, and
	// nothing of the stock; Replayed are letters that were replayed while it got nothing.
	Sent struct{ Kept, Gone, RowsGone, StockGone, Replayed int }
	// Lost is the oracle's verdict after the failover, Mended the one after all was mended.
	Lost, Mended *oracle.Report
	// Found is what reconcile found after the failover, by kind, and Left what it found after it had mended.
	Found, Left map[string]int
	// Again is how many of the messages that the producer sent again had an effect: those that no server knew of any
	// more.
	Again int
	// Unseen is how many orders only the shop's own events show, which ended for the log and are reserved.
	Unseen     int
	Violations []string
}

// lossy is how many messages each part of the run has.
const lossy = 300

// Lose lets a failover lose commits: MySQL's asynchronous replication, whose source dies while the replica lags, and
// had been told for a while to leave tables out, as an operator does by mistake. Then it mends what can be mended.
func Lose(ctx context.Context, o Options) (result *Losses, err error) {
	o.Nodes, o.Databases, o.Replication, o.Round, o.Rate = 1, databaseNodes, stack.Async, true, 100
	w, err := newWorld(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	w.fleet.start(ctx)
	defer w.fleet.kill()
	l := &loser{w: w, out: &Losses{}}
	if err := errors.Join(w.fleet.consuming(ctx), l.open()); err != nil {
		return nil, err
	}
	defer l.close(ctx)
	for _, step := range []func(context.Context) error{l.diverge, l.failOver, l.judge, l.mend} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	l.out.Violations = w.violations
	return l.out, nil
}

// loser is such a run.
type loser struct {
	w    *world
	out  *Losses
	p    *rabbit.Publisher
	late []shop.Order // whose reservations came after their rollback had died
	sent []oracle.Sent
}

func (l *loser) open() error {
	l.p = rabbit.NewPublisher(rabbit.Config{URLs: l.w.load.urls, Name: "shop"})
	return nil
}

func (l *loser) close(ctx context.Context) { _ = l.p.Close(context.WithoutCancel(ctx)) } // all is confirmed

// publish publishes messages and waits until nothing is left to do.
func (l *loser) publish(ctx context.Context, sent []oracle.Sent) error {
	if err := shop.Publish(ctx, l.p, l.w.load.ledger, sent, nil); err != nil {
		return err
	}
	return l.rest(ctx)
}

// rest waits until nobody holds a message and none is under way. RabbitMQ's own counts of quorum queues may be five
// seconds old; what a queue answers to who declares it is not.
func (l *loser) rest(ctx context.Context) error {
	conn, err := rabbit.Dial(ctx, rabbit.Config{URLs: l.w.load.urls, Name: "shop"})
	if err != nil {
		return err
	}
	defer conn.Close()
	topology := rabbit.TopologyConfig{Queue: queue, Delays: retryDelays}
	var last error
	look := func() error {
		for _, name := range topology.Queues() {
			if name == rabbit.DeadQueue(queue) {
				continue
			}
			n, _, err := conn.Depth(ctx, name)
			if err == nil && n > 0 {
				err = fmt.Errorf("%d messages are in %s", n, name)
			}
			if err != nil {
				return err
			}
		}
		n, err := l.w.broker.unackedNow(ctx)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d deliveries are unacked", n)
		}
		return errors.Join(err, l.w.noOpenRow(ctx))
	}
	// twice, because a message may move between two looks
	if !until(ctx, 2*time.Minute, func() bool { last = look(); return last == nil && look() == nil }) {
		return fmt.Errorf("not at rest after two minutes: %w", last)
	}
	return l.w.broker.quiet(ctx) // the oracle asks the queues, not the channels
}

// next are the messages of the next n orders; the keys of every second one are the orders' numbers.
func (l *loser) next(n int) (sent []oracle.Sent) {
	load := l.w.load
	for i := range n {
		s := load.route.Rollback(load.orders[load.next])
		if i%2 == 0 {
			s.MessageID = load.orders[load.next].SN
		}
		sent = append(sent, s)
		load.next++
	}
	l.sent = append(l.sent, sent...)
	return sent
}

// diverge lets messages be applied while the replica gets all, a part, and nothing of them.
func (l *loser) diverge(ctx context.Context) error {
	w, replica := l.w, 1
	l.late = shop.Orders(w.load.rng, "late", lossy/10, skus)
	var late []oracle.Sent
	for _, o := range l.late {
		late = append(late, w.load.route.Rollback(o))
	}
	l.sent = append(l.sent, late...)
	if err := errors.Join(l.publish(ctx, l.next(lossy)), l.publish(ctx, late)); err != nil {
		return err
	}
	// what they had not reserved when their rollback died, they have by now
	if err := shop.SeedReserved(ctx, w.db, l.late); err != nil {
		return err
	}
	leave := func(tables ...string) error {
		if err := w.stack.Level(ctx, 0); err != nil {
			return err
		}
		return w.stack.LeaveOut(ctx, replica, tables...)
	}
	if err := leave(database+".consumer_log", database+".consumer_log_event"); err != nil {
		return err
	}
	if err := l.publish(ctx, l.next(lossy)); err != nil {
		return err
	}
	if err := leave(database+".stock", database+".stock_reservation", database+".oracle_release"); err != nil {
		return err
	}
	if err := l.publish(ctx, l.next(lossy)); err != nil {
		return err
	}
	if err := leave(); err != nil {
		return err
	}
	if err := w.stack.CutOff(ctx, w.stack.Databases[0]); err != nil {
		return err
	}
	if err := l.publish(ctx, l.next(lossy)); err != nil {
		return err
	}
	var res struct{ Replayed int }
	if err := w.command(ctx, &res, "dlq", "replay", "--all", "--force"); err != nil {
		return err
	}
	l.out.Sent.Kept, l.out.Sent.RowsGone, l.out.Sent.StockGone, l.out.Sent.Gone = lossy, lossy, lossy, lossy
	l.out.Sent.Replayed = res.Replayed
	w.say("%d messages are applied and acked, %d of them after a replay", 4*lossy+res.Replayed, res.Replayed)
	return l.rest(ctx)
}

// failOver kills the source, and promotes the replica that lags.
func (l *loser) failOver(ctx context.Context) error {
	w := l.w
	if err := w.stack.Databases[0].Kill(); err != nil {
		return err
	}
	at, err := w.stack.Promote(ctx, 0)
	if err != nil {
		return err
	}
	w.say("%s is the source now", w.stack.Databases[at].NodeName())
	if err := l.w.fleet.consuming(ctx); err != nil {
		return err
	}
	return l.rest(ctx)
}

// judge asks the oracle and reconcile what is left.
func (l *loser) judge(ctx context.Context) (err error) {
	w := l.w
	l.out.Lost, err = w.oracle.Check(ctx, w.before, w.load.ledger, oracle.Allowance{Attempts: maxAttempts})
	if err != nil {
		return err
	}
	l.out.Found, err = l.reconcile(ctx)
	return err
}

type finding struct {
	Kind   string
	Cure   string // as a command
	Mended bool
}

func (l *loser) reconcileAll(ctx context.Context, args ...string) (open map[string]int, all []finding, err error) {
	var res struct{ Findings []finding }
	err = l.w.command(ctx, &res, append([]string{"reconcile"}, args...)...)
	if len(res.Findings) > 0 {
		err = nil // it says that they are there
	}
	open = map[string]int{}
	for _, f := range res.Findings {
		if !f.Mended {
			open[f.Kind]++
		}
	}
	return open, res.Findings, err
}

func (l *loser) reconcile(ctx context.Context) (map[string]int, error) {
	open, _, err := l.reconcileAll(ctx)
	return open, err
}

// mend does what a shop must: what reconcile can mend, what it prints, all events of the time again, and what only the
// events show.
func (l *loser) mend(ctx context.Context) error {
	w := l.w
	_, found, err := l.reconcileAll(ctx, "--adopt", "--republish")
	if err != nil {
		return err
	}
	if err := l.rest(ctx); err != nil {
		return err
	}
	for _, f := range found {
		if f.Mended {
			continue
		}
		// printf '%s\n' 'BODY' | NAME publish --key-field repair --tag repair
		_, body, ok := strings.Cut(f.Cure, `'%s\n' '`)
		body, _, ends := strings.Cut(body, `' | `)
		if !ok || !ends {
			return fmt.Errorf("reconcile prints for %s: %s", f.Kind, f.Cure)
		}
		if err := l.repair(ctx, []byte(body)); err != nil {
			return err
		}
	}
	if err := l.rest(ctx); err != nil {
		return err
	}
	if l.out.Left, err = l.reconcile(ctx); err != nil {
		return err
	}
	rows := func() (n int, err error) {
		err = w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM consumer_log WHERE consumer_status = 1").Scan(&n)
		return n, err
	}
	had, err := rows()
	if err != nil {
		return err
	}
	if err := l.publish(ctx, l.sent); err != nil {
		return err
	}
	has, err := rows()
	if err != nil {
		return err
	}
	l.out.Again = has - had
	// What the shop knows: these orders are over, and still have something reserved.
	for _, s := range l.sent {
		var reserved int
		err := w.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM stock_reservation WHERE order_sn = ? AND status = 1",
			[]byte(s.Order)).Scan(&reserved)
		if err != nil {
			return err
		}
		if reserved == 0 {
			continue
		}
		l.out.Unseen++
		if err := l.repair(ctx, fmt.Appendf(nil, `{"order_sn":%q,"repair":"shop/%s"}`, s.Order, s.Order)); err != nil {
			return err
		}
	}
	if err := l.rest(ctx); err != nil {
		return err
	}
	w.fleet.drain(ctx)
	l.out.Mended, err = w.oracle.Check(ctx, w.before, w.load.ledger, oracle.Allowance{Attempts: maxAttempts})
	return err
}

// repair publishes a message that gives back what an order still has reserved, under an identity of its own.
func (l *loser) repair(ctx context.Context, body []byte) error {
	var said struct {
		Order  string `json:"order_sn"`
		Repair string
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return fmt.Errorf("read %s: %w", body, err)
	}
	s := oracle.Sent{Publishing: l.w.load.route.Message(said.Repair, body), Fate: oracle.ToBeApplied(), Order: said.Order}
	s.Type = "repair"
	return shop.Publish(ctx, l.p, l.w.load.ledger, []oracle.Sent{s}, nil)
}

// Err is nil when what was lost is what this run makes, reconcile found what it can, and all was mended.
func (r *Losses) Err() error {
	errs := []error{r.Mended.Err()}
	for _, v := range r.Violations {
		errs = append(errs, errors.New(v))
	}
	want := func(what string, got, want int) {
		if got != want {
			errs = append(errs, fmt.Errorf("%s: %d, want %d", what, got, want))
		}
	}
	want("messages without a row", r.Lost.Lost, r.Sent.Gone+r.Sent.RowsGone)
	want("duplicated effects", r.Lost.DuplicatedEffects, 0)
	want("found: released_without_success", r.Found["released_without_success"], r.Sent.RowsGone)
	want("found: success_not_released, where the key is the order's number", r.Found["success_not_released"],
		r.Sent.StockGone/2)
	want("found: dead_without_letter", r.Found["dead_without_letter"], r.Sent.Replayed)
	want("found again", len(r.Left), 0)
	want("messages sent again that had an effect", r.Again, r.Sent.Gone)
	want("orders that only the shop's events show", r.Unseen, r.Sent.StockGone/2)
	return errors.Join(errs...)
}

// Print writes the counters.
func (r *Losses) Print(w io.Writer) {
	fmt.Fprintf(w, "\nsent: %+v\nafter the failover: %v\nfound by reconcile: %v\n", r.Sent, r.Lost.Counters, r.Found)
	fmt.Fprintf(w, "after reconcile --adopt --republish, and what it prints: %v\n", r.Left)
	fmt.Fprintf(w, "sent again, all: %d had an effect; orders that only the shop's events show: %d\n", r.Again, r.Unseen)
	fmt.Fprintf(w, "in the end: %v\n", r.Mended.Counters)
}
