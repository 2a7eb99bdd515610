package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// Why a lane ends its session while the engine is not asked to stop.
var (
	errGiveBack      = errors.New("a dependency stayed away: deliveries given back")
	errInHandTooLong = errors.New("deliveries in hand too long: given back before RabbitMQ's consumer timeout takes them")
	errBraked        = errors.New("too much fails: what was not started is given back")
	errStopping      = errors.New("the session ends: what was not started is given back")
)

const (
	// maxMeetings is how often a group may lose a deadlock, or its time to locks of others or to a slow statement, before
	// it is halved; and how often a message alone may lose to others before it comes back later.
	maxMeetings = 3
)

// worker is what all steps in the life of a lane's batches share: patience with dependencies, and the ends of an item
// that more than one step knows. What only one step needs is that step's.
type worker struct {
	c     *engine
	name  string // host/pid/start/lane
	sub   *rabbit.Subscription
	clock *laneClock
	// locker is of the schema that the session met.
	locker schemaLock
	// declare makes the queues that are missing.
	declare  func(context.Context) error
	backstop bool
	size     int // of a batch, at most
	halfOpen halfOpen
	quit     <-chan struct{} // closed when nothing more may be started; lane.run sets it
	withheld int             // deliveries that the lane holds back: no ack of many may pass them
}

// enough says why the lane must not start what it has not started of a batch; nil while it may.
func (w *worker) enough(b *batch) error {
	if time.Since(b.taken) > w.c.cfg.HoldLimit {
		return errInHandTooLong
	}
	if err := w.c.runner.full(); err != nil {
		return err
	}
	if !w.backstop && !w.halfOpen.probe && w.c.brake.stops() {
		return errBraked
	}
	select {
	case <-w.quit:
		return errStopping
	default:
		return nil
	}
}

// owner is a name never used twice, for the next claim or the locks of a batch: host/pid/start/lane/count.
func (w *worker) owner() string {
	return fmt.Sprintf("%s/%d", w.name, w.c.count.Add(1))
}

// mayKill reports whether a message was in the hands of a process that died so often that not even the handler's
// Validate may see it before a claim counts that.
func (w *worker) mayKill(it *item) bool {
	return w.backstop || it.deliveries() > maxFastDeliveries
}

// validate asks the handler's Validator, if it is one, what is wrong with each of msgs. A panic is an error of the
// message, as is an end of the goroutine, and that it does not return.
func (w *worker) validate(ctx context.Context, msgs ...*Message) []error {
	errs := make([]error, len(msgs))
	if w.c.validator == nil {
		return errs
	}
	for next := 0; next < len(msgs); {
		// What is left behind keeps memory of its own.
		own, found := make([]Message, len(msgs)-next), make([]error, len(msgs)-next)
		for i, m := range msgs[next:] {
			own[i] = *m
		}
		bounded, cancel := context.WithTimeout(ctx, w.c.cfg.HandlerTimeout)
		at, err := w.c.runner.run(bounded, own, func(ctx context.Context) error {
			at := positionOf(ctx, own)
			for i := range own {
				at.set(i)
				if found[i] = w.c.validator.Validate(&own[i]); ctx.Err() != nil {
					return nil // for whom it was at; the others are asked anew
				}
			}
			return nil
		})
		cancel()
		for i := range at + 1 {
			if i == at && err != nil {
				errs[next+i] = fmt.Errorf("validation: %w", err)
				if p, ok := errors.AsType[*panicError](err); ok {
					errs[next+i] = fmt.Errorf("validation panicked: %v", p.value)
				}
				break
			}
			errs[next+i], msgs[next+i].Value = found[i], own[i].Value
		}
		next += at + 1
	}
	return errs
}

// untilAnswered repeats op while a dependency does not answer, with jittered backoff and the batch in hand: ending the
// session would charge a delivery to every message the broker handed out. When that lasts longer than GiveBackAfter the
// batch is given back after all. op bounds itself.
func (w *worker) untilAnswered(ctx context.Context, dependency string, op func(context.Context) error) error {
	return w.repeat(ctx, dependency, op, func(context.Context, time.Duration) {})
}

// repeat is untilAnswered; before each pause it calls beforePause with how long that will be.
func (w *worker) repeat(
	ctx context.Context, dependency string,
	op func(context.Context) error, beforePause func(context.Context, time.Duration),
) error {
	pause := newBackOff()
	began, missing := time.Now(), false
	for {
		w.clock.tick()
		tried := time.Now()
		stop := func() {}
		if dependency == DependencyMySQL {
			stop = w.c.holders.beside(ctx)
		}
		err := op(ctx)
		stop()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if contended(err) {
			w.c.health.inVain(ctx, err, time.Since(tried))
		}
		if !isTrouble(err) { // whatever it says, the dependency has answered
			if missing {
				w.c.health.back(ctx, dependency)
			}
			return err
		}
		trouble, _ := errors.AsType[*troubleError](err)
		counted := trouble != nil && trouble.counted
		if !counted && !contended(err) {
			missing = true
			w.c.health.missing(ctx, dependency, err)
		}
		if !counted && time.Since(began) > w.patience() {
			return fmt.Errorf("%w: %w", errGiveBack, err)
		}
		d := pause.NextBackOff()
		w.clock.tick()
		beforePause(ctx, d)
		w.clock.rest() // it waits and is not stuck
		if err := wait.For(ctx, d); err != nil {
			return err
		}
	}
}

// patience is how long the lane waits for a dependency with a batch in hand: half open, no longer than until another
// lane has ended it.
func (w *worker) patience() time.Duration {
	if w.halfOpen.lanes == 0 {
		return w.c.cfg.GiveBackAfter
	}
	select {
	case <-w.quit:
		return 0
	default:
		return w.halfOpen.patience
	}
}

// rowsOf reads the rows of items, however long MySQL stays away.
func (w *worker) rowsOf(ctx context.Context, items []*item) (rows map[dedup.Identity]dedup.Row, err error) {
	keys := eachOf(items, (*item).identity)
	err = w.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, w.c.opTimeout)
		defer cancel()
		rows, err = w.c.records.LookUp(ctx, keys)
		return err
	})
	return rows, err
}

// untilKnown is untilAnswered for a transition of the log, which may be repeated when the answer to its COMMIT was
// lost.
func (w *worker) untilKnown(ctx context.Context, transition func(context.Context) error) error {
	return w.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, w.c.opTimeout)
		defer cancel()
		return repeatable(transition(ctx))
	})
}

// untilAllKnown is untilKnown for a transition of many rows; errs say of each that it was made, or dedup.ErrLost.
func (w *worker) untilAllKnown(
	ctx context.Context, transition func(context.Context) []error,
) (errs []error, err error) {
	err = w.untilKnown(ctx, func(ctx context.Context) error {
		errs = transition(ctx)
		return firstButLost(errs)
	})
	return errs, err
}

// isTrouble reports whether err says nothing about a message: a dependency, or two transactions that met.
func isTrouble(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := errors.AsType[*troubleError](err); ok {
		return true
	}
	for _, told := range []error{dedup.ErrLost, dedup.ErrExists, dedup.ErrUnknown} {
		if errors.Is(err, told) {
			return false
		}
	}
	return true // of the log or the lock: the database, Redis or a timeout
}

// lateFor reports whether a batch has been in hand for so long that whoever is in others' way comes back later: the
// next messages of the queue may be in nobody's way.
func (w *worker) lateFor(b *batch) bool { return time.Since(b.taken) > w.c.cfg.GiveBackAfter }

// transition runs one transition of it's row until MySQL answers; one whose answer was lost is repeated, which the log
// recognises. A row that somebody else moved is theirs: a copy of the message comes back later, and no attempt is
// counted.
func (w *worker) transition(ctx context.Context, it *item, step func(context.Context) error) error {
	err := w.untilKnown(ctx, step)
	if errors.Is(err, dedup.ErrLost) {
		w.leaseLost(it)
		return nil
	}
	return err
}

func (w *worker) leaseLost(items ...*item) {
	for _, it := range items {
		it.copy.refused, it.copy.unsure, it.copy.tried = nil, nil, false // that was another copy
		it.end(LeaseLost, retryAfter{delay: w.c.cfg.RetryDelays[0], attempt: it.row.Attempts})
	}
}

// applied ends items whose effect is committed.
func (w *worker) applied(items []*item) {
	w.c.commits.Add(1)
	now := time.Now()
	for _, it := range items {
		it.end(Applied, ack{})
		if !it.msg.PublishedAt.IsZero() {
			w.c.metrics.lag.Observe(now.Sub(it.msg.PublishedAt).Seconds())
		}
	}
}

// lastWords are what the letter of a row says that gets no further attempt. Of a call that never came back nobody knows
// what the service did.
func (w *worker) lastWords(row dedup.Row) string {
	if w.c.service != nil && row.Reason == dedup.ReasonCrashed {
		return "perhaps applied: " + row.Remark
	}
	return row.Remark
}

// failedOnce ends an item whose failed attempt is recorded.
func (w *worker) failedOnce(it *item, row dedup.Row, cause string) {
	if row.Attempts >= w.c.cfg.MaxAttempts {
		it.end(DeadLettered, deadLetter{dedup.ReasonExhausted, row, cause})
	} else {
		it.end(Retried, retryAfter{w.c.cfg.RetryDelays[row.Attempts-1], row.Attempts, cause})
	}
}

// putOff sends a message that is not at fault to a retry queue, and no attempt is counted.
func (w *worker) putOff(it *item, cause error) {
	delays := w.c.cfg.RetryDelays
	delay := fit(delays, w.c.obstacles.age(it)) // for no longer than the lock is known
	if errors.Is(cause, errHandlerTimeout) {    // each time for longer, because it costs the lane a handler's time
		delay = delays[min(w.c.suspects.back(it.id.Identity), len(delays))-1]
	}
	it.end(InProgress, retryAfter{delay: delay, attempt: max(0, it.row.Attempts), cause: cause.Error()})
}

// longestPause is the longest between two tries, give or take half of it.
const longestPause = 5 * time.Second

// newBackOff is the pause between two tries of something outside: 50 ms, growing to 5 s, half of it by chance.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, longestPause
	b.RandomizationFactor, b.Multiplier = 0.5, 2
	b.Reset()
	return b
}
