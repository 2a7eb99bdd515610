package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// Why a lane ends its session while the engine is not asked to stop.
var (
	errGiveBack    = errors.New("a dependency stayed away: deliveries given back")
	errHeldTooLong = errors.New("deliveries held too long: given back before RabbitMQ's consumer timeout takes them")
	errBraked      = errors.New("too many dead letters")
	errStopping    = errors.New("the session ends: what was not started is given back")
	errHalve       = errors.New("the group must be halved")
)

const (
	// settleEvery bounds how long finished messages of the slow path wait for their acks.
	settleEvery = 50 * time.Millisecond
	// meetingsBeforeHalving is how often a group may lose a deadlock or a lock wait before it is halved.
	meetingsBeforeHalving = 3
)

// lane owns one channel, one goroutine and one batch at a time.
type lane struct {
	c     *Consumer
	name  string // host/pid/start/lane
	sub   *rabbit.Subscription
	clock *laneClock
	buf   []rabbit.Delivery
	items []item // the room of the batch in hand
	// life is what happens to a batch of at most size deliveries: process, or processBackstop.
	life     func(context.Context, *batch) error
	size     int
	backstop bool
	trial    trial
	// newcomers are the messages that look new.
	newcomers newcomers
	quit      <-chan struct{} // closed when nothing more may be started; run sets it
}

// run takes batches until intake ends (nil), the subscription ends, or a batch fails; limit, if not 0, is how many
// batches it takes at most. work outlives intake: what is in hand is finished.
func (l *lane) run(intake, work context.Context, limit int) error {
	l.quit = intake.Done()
	for n := 1; ; n++ {
		l.clock.rest()
		if intake.Err() != nil { // although more may have been delivered
			return nil
		}
		taken, err := l.sub.Collect(intake, l.size, l.c.cfg.BatchLinger, l.buf[:0])
		if len(taken) == 0 {
			if intake.Err() != nil {
				return nil
			}
			return fmt.Errorf("take deliveries: %w", err)
		}
		l.buf = taken
		l.clock.tick()
		l.c.metrics.batchSize.Observe(float64(len(taken)))
		b := l.newBatch(taken)
		if err := l.life(work, b); err != nil {
			b.failed, b.parting = true, true
			l.unlock(context.WithoutCancel(work), b)
			_ = l.acknowledge(b) // what waited for the rest of the batch; a dead channel takes none
			l.abandon(b)
			return err
		}
		clear(l.items) // an idle lane keeps no bodies
		clear(taken)
		if n == limit {
			return nil
		}
	}
}

func (l *lane) newBatch(taken []rabbit.Delivery) *batch {
	b := &batch{
		all:     make([]*item, len(taken)),
		leaders: make(map[dedup.Key]*item, len(taken)),
		taken:   time.Now(),
		token:   l.owner(),
	}
	if cap(l.items) < len(taken) {
		l.items = make([]item, len(taken), max(len(taken), min(l.size, 2*cap(l.items))))
	}
	l.items = l.items[:len(taken)]
	for i := range taken {
		l.items[i].delivery = taken[i]
		b.all[i] = &l.items[i]
	}
	return b
}

// enough says why the lane must not start what it has not started of a batch; nil while it may.
func (l *lane) enough(b *batch) error {
	if time.Since(b.taken) > l.c.cfg.HoldLimit {
		return errHeldTooLong
	}
	select {
	case <-l.quit:
		return errStopping
	default:
		return nil
	}
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

// validate asks the handler's Validator, if it is one. Its panic is an error of the message.
func (l *lane) validate(m *Message) (err error) {
	if l.c.validator == nil {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("validation panicked: %v", p)
		}
	}()
	return l.c.validator.Validate(m)
}

// until repeats op while a dependency does not answer, with jittered backoff and the batch in hand: ending the session
// would charge a delivery to every message the broker handed out. When that lasts longer than GiveBackAfter the batch
// is given back after all. op bounds itself.
func (l *lane) until(ctx context.Context, dependency string, op func(context.Context) error) error {
	pause := newBackOff()
	began, missing := time.Now(), false
	for {
		l.clock.tick()
		err := op(ctx)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !isTrouble(err) { // whatever it says, the dependency has answered
			if missing {
				l.c.health.back(ctx, dependency)
			}
			return err
		}
		if dedup.Classify(err) != dedup.FaultContention {
			missing = true
			l.c.health.missing(ctx, dependency, err)
		}
		if time.Since(began) > l.patience() {
			return fmt.Errorf("%w: %w", errGiveBack, err)
		}
		if err := sleep(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

// patience is how long the lane waits for a dependency with a batch in hand: in a trial, no longer than until another
// lane has ended it.
func (l *lane) patience() time.Duration {
	if l.trial.lanes == 0 {
		return l.c.cfg.GiveBackAfter
	}
	select {
	case <-l.quit:
		return 0
	default:
		return l.trial.patience
	}
}

// rowsOf reads the rows of items, however long MySQL stays away.
func (l *lane) rowsOf(ctx context.Context, items []*item) (rows map[dedup.Key]dedup.Row, err error) {
	keys := keysOf(items)
	err = l.until(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, l.c.opTimeout)
		defer cancel()
		rows, err = l.c.records.LookUp(ctx, keys)
		return err
	})
	return rows, err
}

// untilKnown is until for a transition of the log, which may be repeated when the answer to its COMMIT was lost.
func (l *lane) untilKnown(ctx context.Context, transition func(context.Context) error) error {
	return l.until(ctx, DependencyMySQL, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, l.c.opTimeout)
		defer cancel()
		err := transition(ctx)
		if errors.Is(err, dedup.ErrUnknown) {
			return &troubleError{dedup.FaultUnavailable, err}
		}
		return err
	})
}

// isTrouble reports whether err says nothing about a message: a dependency, or two transactions that met.
func isTrouble(err error) bool {
	if err == nil {
		return false
	}
	if _, ok := errors.AsType[*handlerError](err); ok {
		return false
	}
	if _, ok := errors.AsType[*troubleError](err); ok {
		return true
	}
	for _, told := range []error{errHalve, dedup.ErrLost, dedup.ErrExists, dedup.ErrUnknown} {
		if errors.Is(err, told) {
			return false
		}
	}
	return true // of the log or the lock: the database, Redis or a timeout
}

// newBackOff is the pause between two tries of something outside: 50 ms, growing to 5 s, half of it by chance.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = 50*time.Millisecond, 5*time.Second
	b.RandomizationFactor, b.Multiplier = 0.5, 2
	b.Reset()
	return b
}

// sleep waits for d or for the end of ctx, whose cause it returns then.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
