package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/program"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// job is what somebody does again and again, beside the load and the faults.
type job struct {
	name, unit string
	rest       time.Duration // after each time
	// do does it once and says how much it did. A server may be away meanwhile: an error is no violation.
	do func(ctx context.Context, w *world) (int, error)
}

// coolDown is how soon the daemons replay by themselves what may have passed.
const coolDown = time.Second

// atMost is the patience with a command: longer than any fault lasts.
const atMost = time.Minute

// jobs are what people do to dead letters and rows, and what the daemons do by themselves.
func jobs() []job {
	replay := func(args ...string) func(context.Context, *world) (int, error) {
		return func(ctx context.Context, w *world) (int, error) {
			var res struct{ Replayed int }
			err := w.command(ctx, &res, append([]string{"dlq", "replay", "--force"}, args...)...)
			return res.Replayed, err
		}
	}
	// The daemons' compensation gets what may pass, when nobody else is faster.
	var cannotPass []string
	lasting := []dedup.Reason{dedup.ReasonMalformed, dedup.ReasonPermanent, dedup.ReasonConflict, dedup.ReasonUnidentified}
	for _, reason := range lasting {
		cannotPass = append(cannotPass, "--reason", string(reason))
	}
	return []job{
		{"dlq replay", "letters", 3 * time.Second, replay(append(cannotPass, "--window", "50")...)},
		{"dlq replay --no-wait", "letters", 12 * time.Second, replay("--all", "--no-wait")},
		{"dlq replay, killed", "processes", 8 * time.Second, killReplay},
		{"compensation", "letters", 5 * time.Second, countCompensated},
		{"reconcile --republish", "messages", 3 * time.Second, reconcileAll},
		{"log prune", "rows", 2 * time.Second, prune},
		{"dead-letter queue purged", "letters", 12 * time.Second, purge},
		{"letters moved by hand", "letters", 6 * time.Second, move},
	}
}

// people is everybody at work.
type people struct {
	w    *world
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// startPeople lets each job be done again and again until [people.end].
func (w *world) startPeople(ctx context.Context) *people {
	p := &people{w: w}
	ctx, p.stop = context.WithCancel(ctx)
	for _, j := range jobs() {
		p.wg.Go(func() {
			for wait.For(ctx, j.rest) == nil {
				work, cancel := context.WithTimeout(context.WithoutCancel(ctx), atMost) // what was begun is ended
				n, err := j.do(work, w)
				cancel()
				w.did(j, n, err)
			}
		})
	}
	return p
}

// untilAllHit lets people go on until each of them has done something: the faults may have been over too soon.
func (p *people) untilAllHit(ctx context.Context) {
	until(ctx, 2*time.Minute, func() bool {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		return !slices.ContainsFunc(p.w.doneInOrder(), func(s Struck) bool { return s.Hit == 0 })
	})
}

// end waits until nobody does anything any more.
func (p *people) end() {
	p.stop()
	p.wg.Wait()
}

// did counts a job. One that was never done at all fails the run like a fault that never hit.
func (w *world) did(j job, n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.done[j.name]
	if s == nil {
		s = &Struck{Name: j.name, Unit: j.unit}
		w.done[j.name] = s
	}
	s.Times++
	s.Hits += n
	if n > 0 {
		s.Hit++
	}
	if err != nil {
		s.Failed++
		s.Last = err
	}
}

// doneInOrder are the jobs, those without a result too.
func (w *world) doneInOrder() (all []Struck) {
	if !w.o.People {
		return nil
	}
	for _, j := range jobs() {
		s := Struck{Name: j.name, Unit: j.unit}
		if w.done[j.name] != nil {
			s = *w.done[j.name]
		}
		all = append(all, s)
	}
	return all
}

// command runs a command of the binary through the same links as the daemons, and reads its JSON into result.
func (w *world) command(ctx context.Context, result any, args ...string) error {
	out, err := program.Run(ctx, w.o.Binary, w.environ, append(args, "-o", "json")...)
	if _, text, ok := strings.Cut(out, "{"); ok {
		err = errors.Join(err, json.NewDecoder(strings.NewReader("{"+text)).Decode(result))
	}
	return err
}

// killReplay lets a replay live for a moment only, a longer one each time.
func killReplay(ctx context.Context, w *world) (int, error) {
	w.killed++
	const least, step, steps = 100 * time.Millisecond, 50 * time.Millisecond, 10
	ctx, cancel := context.WithTimeout(ctx, least+time.Duration(w.killed%steps)*step)
	defer cancel()
	_, err := program.Run(ctx, w.o.Binary, w.environ, "dlq", "replay", "--all", "--force")
	if ctx.Err() != nil {
		return 1, nil
	}
	return 0, err
}

// countCompensated counts what the daemons have replayed by themselves since it was last asked.
func countCompensated(ctx context.Context, w *world) (int, error) {
	var n int
	const compensated = "SELECT COUNT(*) FROM consumer_log_event WHERE `by` LIKE 'compensation by %'"
	err := w.db.QueryRowContext(ctx, compensated).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count what was compensated: %w", err)
	}
	fresh := n - w.compensated
	w.compensated = n
	return fresh, nil
}

// reconcileAll sends again what was purged. What moves meanwhile it leaves alone.
func reconcileAll(ctx context.Context, w *world) (mended int, err error) {
	var res struct{ Findings []struct{ Mended bool } }
	err = w.command(ctx, &res, "reconcile", "--adopt", "--republish", "--overdue", overdue.String())
	for _, f := range res.Findings {
		if f.Mended {
			mended++
		}
	}
	return mended, err
}

// overdue is longer than any message that is under way needs, unless a fault holds it up.
const overdue = 15 * time.Second

// prune deletes rows that are old enough, which it makes first.
func prune(ctx context.Context, w *world) (int, error) {
	const rows = 100
	for range rows {
		w.aged++
		_, err := w.db.ExecContext(ctx, `INSERT INTO consumer_log (group_name, msg_tag, msg_key, body_hash, consumer_status,
			consumer_times, consumer_timestamp, created_at) VALUES (?, 'stock.rollback', ?, REPEAT('h', 32), 1,
			1, UTC_TIMESTAMP(6) - INTERVAL 40 DAY, UTC_TIMESTAMP(6) - INTERVAL 40 DAY)`,
			[]byte(w.oracle.Group), fmt.Appendf(nil, "aged-%06d", w.aged))
		if err != nil {
			return 0, fmt.Errorf("make old rows: %w", err)
		}
	}
	var res struct{ Rows []struct{ Rows int } }
	err := w.command(ctx, &res, "log", "prune")
	n := 0
	for _, r := range res.Rows {
		n += r.Rows
	}
	return n, err
}

func purge(ctx context.Context, w *world) (int, error) {
	text, err := w.broker.eval(ctx, fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"%s">>)),
		{ok, N} = rabbit_amqqueue:purge(Q), N`, rabbit.DeadQueue(queue)))
	if err != nil {
		return 0, err
	}
	var n int
	if _, err := fmt.Sscan(text, &n); err != nil {
		return 0, fmt.Errorf("purge: rabbitmq answered %q: %w", text, err)
	}
	return n, nil
}

// move puts some letters on the main queue as they are, as a shovel does.
func move(ctx context.Context, w *world) (moved int, err error) {
	const most = 5
	conn, err := rabbit.Dial(ctx, rabbit.Config{URLs: w.load.urls, Name: "chaos shovel"})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	p := rabbit.NewPublisher(rabbit.Config{URLs: w.load.urls, Name: "chaos shovel"})
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	sub, err := conn.Consume(ctx, rabbit.DeadQueue(queue), "shovel", most)
	if err != nil {
		return 0, err
	}
	soon, cancel := context.WithTimeout(ctx, 2*time.Second) // the queue may be empty
	defer cancel()
	letters, err := sub.Collect(soon, most, 100*time.Millisecond, nil)
	if err != nil {
		return 0, sub.Close()
	}
	batch := make([]rabbit.Publishing, len(letters))
	for i, d := range letters {
		batch[i] = rabbit.Publishing{Key: queue, Message: d.Message}
	}
	for i, refused := range p.Publish(ctx, batch) {
		if refused != nil {
			err = errors.Join(err, refused)
			continue
		}
		if err := sub.Ack(letters[i].Tag, false); err != nil {
			return moved, errors.Join(err, sub.Close()) // both copies are there now
		}
		moved++
	}
	return moved, errors.Join(err, sub.Close())
}

// tidy is what a good operator does in the end: compensation off, the daemons restarted one after the other, old rows
// deleted, and what was purged sent again, until reconcile finds nothing to mend.
func (w *world) tidy(ctx context.Context) {
	w.fleet.restart(ctx, w.environ)
	var last error
	tidied := until(ctx, 3*time.Minute, func() bool {
		_, pruned := prune(ctx, w)
		_, disagrees := reconcileAll(ctx, w)
		until(ctx, 2*overdue, func() bool {
			last = errors.Join(w.broker.idle(ctx), w.noOpenRow(ctx))
			return last == nil
		})
		last = errors.Join(last, pruned, disagrees)
		return last == nil
	})
	if !tidied && ctx.Err() == nil {
		w.violation("reconcile does not come to an end: %v", last)
	}
}

// restart gives the daemons other settings, one after the other.
func (f *fleet) restart(ctx context.Context, environ []string) {
	for _, s := range f.slots {
		s.mu.Lock()
		s.environ = environ
		s.mu.Unlock()
		p := s.ask()
		limit, cancel := context.WithTimeout(ctx, drainTimeout+5*time.Second)
		_ = p.Signal(syscall.SIGTERM) // it has ended if this fails
		if code, err := p.Wait(limit); err != nil || code != 0 {
			f.w.violation("%s exited with %d (%v) when it was restarted, want 0", s.name, code, err)
		}
		cancel()
		if err := f.consuming(ctx); err != nil && ctx.Err() == nil {
			f.w.violation("after a restart: %v", err)
		}
	}
}
