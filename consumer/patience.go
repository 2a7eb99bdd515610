package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/mysqldb"
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

// enough says why the lane must not start what it has not started of a batch; nil while it may.
func (l *lane) enough(b *batch) error {
	if time.Since(b.taken) > l.c.cfg.HoldLimit {
		return errInHandTooLong
	}
	if err := l.c.runner.full(); err != nil {
		return err
	}
	if !l.backstop && !l.halfOpen.probe && l.c.brake.stops() {
		return errBraked
	}
	if l.intake.Err() != nil {
		return errStopping
	}
	return nil
}

// owner is a name never used twice, for the next claim or the locks of a batch: host/pid/start/lane/count.
func (l *lane) owner() string {
	return fmt.Sprintf("%s/%d", l.name, l.c.count.Add(1))
}

// mayKill reports whether a message was in the hands of a process that died so often that not even the handler's
// Validate may see it before a claim counts that.
func (l *lane) mayKill(it *item) bool {
	return l.backstop || it.deliveries() > maxFastDeliveries
}

// validate asks the handler's Validator, if it is one, what is wrong with each of msgs. A panic is an error of the
// message, as is an end of the goroutine, and that it does not return.
func (l *lane) validate(ctx context.Context, msgs ...*Message) []error {
	errs := make([]error, len(msgs))
	if l.c.validator == nil {
		return errs
	}
	for next := 0; next < len(msgs); {
		// What is left behind keeps memory of its own.
		own, found := make([]Message, len(msgs)-next), make([]error, len(msgs)-next)
		for i, m := range msgs[next:] {
			own[i] = *m
		}
		bounded, cancel := context.WithTimeout(ctx, l.c.cfg.HandlerTimeout)
		at, err := l.c.runner.run(bounded, own, func(ctx context.Context) error {
			at := positionOf(ctx, own)
			for i := range own {
				at.set(i)
				if found[i] = l.c.validator.Validate(&own[i]); ctx.Err() != nil {
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

// setback is why something is tried again. Where there is none the dependency has answered, whatever the error says.
type setback struct {
	is        bool
	contended bool // others have locks, or met a transaction of ours: the dependency is there
	counted   bool // whoever repeats knows how often
}

// setbackOf is what the error of a dependency says: it is away, unless it has told of one row. A COMMIT that had no
// answer is made again, because the log recognises its own. A cluster finds out at COMMIT alone that two transactions
// met (Galera, group replication): no count of meetings bounds that, but the lane's patience.
func setbackOf(err error) setback {
	told := errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrExists)
	return setback{is: err != nil && !told, contended: mysqldb.Classify(err) == mysqldb.FaultContention}
}

// untilAnswered repeats op while a dependency does not answer, with jittered backoff and the batch in hand: ending the
// session would charge a delivery to every message the broker handed out. When that lasts longer than GiveBackAfter the
// batch is given back after all. op bounds itself.
func (l *lane) untilAnswered(ctx context.Context, dependency string, op func(context.Context) error) error {
	return l.repeat(ctx, dependency, func(ctx context.Context) (setback, error) {
		err := op(ctx)
		return setbackOf(err), err
	}, func(context.Context, time.Duration) {})
}

// repeat is untilAnswered, where op says itself whether it is tried again; before each pause it calls beforePause with
// how long that will be.
func (l *lane) repeat(
	ctx context.Context, dependency string,
	op func(context.Context) (setback, error), beforePause func(context.Context, time.Duration),
) error {
	pause := newBackOff()
	began, missing := time.Now(), false
	for {
		l.clock.tick()
		tried := time.Now()
		stop := func() {}
		if dependency == DependencyMySQL {
			stop = l.c.holders.beside(ctx)
		}
		met, err := op(ctx)
		stop()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if met.contended {
			l.c.health.inVain(ctx, err, time.Since(tried))
		}
		switch {
		case !met.is:
			if missing {
				l.c.health.back(ctx, dependency)
			}
			return err
		case !met.counted && !met.contended:
			missing = true
			l.c.health.missing(ctx, dependency, err)
		}
		if !met.counted && time.Since(began) > l.patience() {
			return fmt.Errorf("%w: %w", errGiveBack, err)
		}
		d := pause.NextBackOff()
		l.clock.tick()
		beforePause(ctx, d)
		l.clock.rest() // it waits and is not stuck
		if err := wait.For(ctx, d); err != nil {
			return err
		}
	}
}

// patience is how long the lane waits for a dependency with a batch in hand: half open, no longer than until another
// lane has ended it.
func (l *lane) patience() time.Duration {
	switch {
	case l.halfOpen.lanes == 0:
		return l.c.cfg.GiveBackAfter
	case l.intake.Err() != nil:
		return 0
	}
	return l.halfOpen.patience
}

// rowsOf reads the rows of items, however long MySQL stays away.
func (l *lane) rowsOf(ctx context.Context, items []*item) (rows map[dedup.Identity]dedup.Row, err error) {
	keys := eachOf(items, (*item).identity)
	err = l.untilKnown(ctx, func(ctx context.Context) error {
		rows, err = l.c.records.LookUp(ctx, keys)
		return err
	})
	return rows, err
}

// untilKnown is untilAnswered for a call of the log, which may be repeated when the answer to its COMMIT was
// lost.
func (l *lane) untilKnown(ctx context.Context, call func(context.Context) error) error {
	return l.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, l.c.opTimeout)
		defer cancel()
		return call(ctx)
	})
}

// transition moves many rows in one commit; errs say of each that it was made, or dedup.ErrLost.
type transition func(context.Context) (rows []dedup.Row, errs []error)

// moveRows makes the transitions of all that step says, up to 200 in one commit; done takes in what each has made. Lost
// are those whose rows somebody else has moved.
func moveRows[T any](
	ctx context.Context, l *lane, all []T, step func(some []T) transition, done func(one T, row dedup.Row),
) (lost []T, err error) {
	for some := range slices.Chunk(all, claimAtOnce) {
		move := step(some)
		var rows []dedup.Row
		var errs []error
		err := l.untilKnown(ctx, func(ctx context.Context) error {
			rows, errs = move(ctx)
			return firstButLost(errs)
		})
		if err != nil {
			return lost, err
		}
		for i, one := range some {
			switch {
			case errs[i] != nil:
				lost = append(lost, one)
			case rows == nil:
				done(one, dedup.Row{})
			default:
				done(one, rows[i])
			}
		}
	}
	return lost, nil
}

// lateFor reports whether a batch has been in hand for so long that whoever is in others' way comes back later: the
// next messages of the queue may be in nobody's way.
func (l *lane) lateFor(b *batch) bool { return time.Since(b.taken) > l.c.cfg.GiveBackAfter }

// transition runs one transition of it's row until MySQL answers; one whose answer was lost is repeated, from the row
// as it was read, which the log recognises. A row that somebody else moved is theirs: a copy of the message comes back
// later, and no attempt is counted.
func (l *lane) transition(ctx context.Context, it *item, step func(context.Context) (dedup.Row, error)) error {
	err := l.untilKnown(ctx, func(ctx context.Context) error {
		row, err := step(ctx)
		if err == nil {
			it.row = row
		}
		return err
	})
	if errors.Is(err, dedup.ErrLost) {
		l.leaseLost(it)
		return nil
	}
	return err
}

func (l *lane) leaseLost(items ...*item) {
	for _, it := range items {
		it.copy = publication{unloaded: it.copy.unloaded} // that was another copy
		l.retry(it, LeaseLost, l.c.cfg.RetryDelays[0], "")
	}
}

// applied ends items whose effect is committed.
func (l *lane) applied(items []*item) {
	l.c.commits.Add(1)
	now := time.Now()
	for _, it := range items {
		it.ack(Applied)
		if !it.msg.PublishedAt.IsZero() {
			l.c.metrics.lag.Observe(now.Sub(it.msg.PublishedAt).Seconds())
		}
	}
}

// lastWords are what the letter of a row says that gets no further attempt. Of a call that never came back nobody knows
// what the service did.
func (l *lane) lastWords(row dedup.Row) string {
	if l.c.service != nil && row.Reason == dedup.ReasonCrashed {
		return "perhaps applied: " + row.Remark
	}
	return row.Remark
}

// retry ends a delivery whose message comes again from the retry queue of delay.
func (l *lane) retry(it *item, o Outcome, delay time.Duration, cause string) {
	it.end(o, settlement{by: byRetry, delay: delay, cause: cause})
}

// comeBack has a message come again about when wait is over.
func (l *lane) comeBack(it *item, wait time.Duration) {
	l.retry(it, InProgress, fit(l.c.cfg.RetryDelays, wait), "")
}

// putOff sends a message that is not at fault to a retry queue, and no attempt is counted.
func (l *lane) putOff(it *item, cause error) { it.end(InProgress, l.puttingOff(it, cause)) }

func (l *lane) puttingOff(it *item, cause error) settlement {
	delays := l.c.cfg.RetryDelays
	delay := fit(delays, l.c.obstacles.age(it)) // for no longer than the lock is known
	if errors.Is(cause, errHandlerTimeout) {    // each time for longer, because it costs the lane a handler's time
		delay = delays[min(l.c.suspects.back(it.id.Identity), len(delays))-1]
	}
	return settlement{by: byRetry, delay: delay, cause: cause.Error()}
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
