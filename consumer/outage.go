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

// Why a worker ends its session while the engine is not asked to stop.
var (
	errGiveBack      = errors.New("a dependency stayed away: deliveries given back")
	errInHandTooLong = errors.New("deliveries in hand too long: given back before RabbitMQ's consumer timeout takes them")
	errTripped       = errors.New("too much fails: what was not started is given back")
	errStopping      = errors.New("the session ends: what was not started is given back")
)

// maxMeetings is how often a group may lose a deadlock, or its time to locks of others or to a slow statement, before
// it is halved; and how often a message alone may lose to others before it comes back later.
const maxMeetings = 3

// setback is why something is tried again. Where there is none the dependency has answered, whatever the error says.
type setback struct {
	is        bool
	contended bool // others have locks, or met a transaction of ours: the dependency is there
	counted   bool // whoever repeats knows how often
}

// setbackOf is what the error of a dependency says: it is away, unless it has told of one row. A COMMIT that had no
// answer is made again, because the log recognises its own. A cluster finds out at COMMIT alone that two transactions
// met (Galera, group replication): no count of meetings bounds that, but the worker's patience.
func setbackOf(err error) setback {
	told := errors.Is(err, dedup.ErrLost) || errors.Is(err, dedup.ErrExists)
	return setback{is: err != nil && !told, contended: mysqldb.Classify(err) == mysqldb.FaultContention}
}

// untilAnswered repeats op while a dependency does not answer, with jittered backoff and the batch in hand: ending the
// session would charge a delivery to every message the broker handed out. When that lasts longer than GiveBackAfter the
// batch is given back after all. op bounds itself.
func (w *worker) untilAnswered(ctx context.Context, dependency string, op func(context.Context) error) error {
	return w.repeat(ctx, dependency, func(ctx context.Context) (setback, error) {
		err := op(ctx)
		return setbackOf(err), err
	}, func(context.Context, time.Duration) {})
}

// repeat is untilAnswered, where op says itself whether it is tried again; before each pause it calls beforePause with
// how long that will be.
func (w *worker) repeat(
	ctx context.Context, dependency string,
	op func(context.Context) (setback, error), beforePause func(context.Context, time.Duration),
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
		met, err := op(ctx)
		stop()
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if met.contended {
			w.c.health.inVain(ctx, err, time.Since(tried))
		}
		switch {
		case !met.is:
			if missing {
				w.c.health.back(ctx, dependency)
			}
			return err
		case !met.counted && !met.contended:
			missing = true
			w.c.health.missing(ctx, dependency, err)
		}
		if !met.counted && time.Since(began) > w.patience() {
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

// patience is how long the worker waits for a dependency with a batch in hand: half open, no longer than until another
// worker has ended it.
func (w *worker) patience() time.Duration {
	switch {
	case w.halfOpen.lanes == 0:
		return w.c.cfg.GiveBackAfter
	case w.intake.Err() != nil:
		return 0
	}
	return w.halfOpen.patience
}

// untilKnown is untilAnswered for a call of the log, which may be repeated when the answer to its COMMIT was
// lost.
func (w *worker) untilKnown(ctx context.Context, call func(context.Context) error) error {
	return w.untilAnswered(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, w.c.opTimeout)
		defer cancel()
		return call(ctx)
	})
}

// transition moves many rows in one commit; errs say of each that it was made, or dedup.ErrLost.
type transition func(context.Context) (rows []dedup.Row, errs []error)

// moveRows makes the transitions of all that step says, up to 200 in one commit; done takes in what each has made. Lost
// are those whose rows somebody else has moved.
func moveRows[T any](
	ctx context.Context, w *worker, all []T, step func(some []T) transition, done func(one T, row dedup.Row),
) (lost []T, err error) {
	for some := range slices.Chunk(all, claimAtOnce) {
		move := step(some)
		var rows []dedup.Row
		var errs []error
		err := w.untilKnown(ctx, func(ctx context.Context) error {
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

// transition runs one transition of it's row until MySQL answers; one whose answer was lost is repeated, from the row
// as it was read, which the log recognises. A row that somebody else moved is theirs: a copy of the message comes back
// later, and no attempt is counted.
func (w *worker) transition(ctx context.Context, it *item, step func(context.Context) (dedup.Row, error)) error {
	err := w.untilKnown(ctx, func(ctx context.Context) error {
		row, err := step(ctx)
		if err == nil {
			it.row = row
		}
		return err
	})
	if errors.Is(err, dedup.ErrLost) {
		w.leaseLost(it)
		return nil
	}
	return err
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

// firstButLost is the first of errs that is another one than dedup.ErrLost, which is told of one row.
func firstButLost(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, dedup.ErrLost) {
			return err
		}
	}
	return nil
}
