package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
)

// pausedByBrake is the brake's name among the reasons for a pause.
const pausedByBrake = "max_dead_rate"

// source is a queue that the engine consumes, over a connection of its own: what ends the connections of one source,
// again and again perhaps, leaves the others alone. Its fields belong to the goroutine of sessions.
type source struct {
	c     *engine
	queue string
	amqp  rabbit.Config
	// locker is of the schema that the session meets.
	locker schemaLock
	// main: the main queue. Only its lanes lock.
	main       bool
	quarantine quarantine
	begin      halfOpen // how the next session begins
	pause      *backoff.ExponentialBackOff
	// Of an ordinary session: its lanes, and of each the size of a batch and how many deliveries it may have in hand.
	lanes, batch, prefetch int
	// Of the last session: whether it came to consume, how many messages waited then, how many deliveries came, and how
	// many of them it acked. That messages waited is asked for only after an end that may be a delivery's fault.
	stood       bool
	waited      int
	came, acked uint64
}

func (c *engine) mainQueue() *source {
	return &source{
		c: c, queue: c.cfg.Queue, amqp: c.amqp, main: true,
		lanes: c.cfg.Lanes, batch: c.cfg.BatchSize, prefetch: c.cfg.Prefetch,
	}
}

// backstopBatch is how many of the broker's own dead letters are taken at once.
const backstopBatch = 50

func (c *engine) backstopQueue() *source {
	amqp := c.amqp
	amqp.Name = rabbit.ConnectionName("run backstop")
	return &source{
		c: c, queue: rabbit.BackstopQueue(c.cfg.Queue), amqp: amqp, locker: schemaLock{Locker: lock.None{}},
		lanes: 1, batch: backstopBatch, prefetch: 2 * backstopBatch,
	}
}

// lost says that its session failed. The engine does not wait for the backstop.
func (s *source) lost(ctx context.Context, err error) {
	switch {
	case s.main:
		s.c.health.missing(ctx, DependencyRabbitMQ, err)
	case !s.c.health.names(DependencyRabbitMQ): // else that is told already
		s.c.health.degraded(ctx, notConsumed, s.queue, err)
	}
}

// stands says that a session stands.
func (s *source) stands(ctx context.Context) {
	if s.main {
		s.c.health.back(ctx, DependencyRabbitMQ)
	} else {
		s.c.health.sound(ctx, notConsumed, s.queue)
	}
}

// sessions keeps one session after the other until intake ends. Everything is made anew for each: connection, channels
// and lanes share nothing with those of a session that failed.
func (s *source) sessions(intake, work context.Context) error {
	s.pause = newBackOff()
	for first := true; intake.Err() == nil; first = false {
		if err := s.ready(intake, first); err != nil {
			if intake.Err() != nil {
				return nil
			}
			return err
		}
		running, stop, left, paused := s.c.pause.phase(intake)
		if paused {
			s.c.rest(running, left+pauseEvery) // the watch ends it
			stop()
			continue
		}
		switch {
		case s.quarantine.active():
			s.begin = quarantined(s.c, s.begin)
		case !s.main:
		case s.c.brake.spaces():
			s.begin = probing(s.c, s.begin)
		default:
			s.c.health.back(intake, pausedByBrake)
		}
		began := time.Now()
		err := s.session(running, work, s.begin)
		paused = running.Err() != nil
		stop()
		switch {
		case intake.Err() != nil:
			return context.Cause(work) // nil while it may go on
		case paused: // it says nothing of what it met, and the next one begins as it did
			continue
		case errors.Is(err, rabbit.ErrClassic), errors.Is(err, errManyStuck):
			return err // waiting would not change it
		}
		if !s.after(intake, err, time.Since(began)) {
			s.c.rest(intake, s.pause.NextBackOff())
		}
	}
	return nil
}

// longLife is how long a session must have stood for the pause before the next one to be short again.
const longLife = 10 * time.Second

// after says how the next session begins when one has ended with err, and whether at once.
func (s *source) after(ctx context.Context, err error, lived time.Duration) (atOnce bool) {
	c, last := s.c, s.begin
	s.begin = halfOpen{}
	if lived > longLife {
		s.pause.Reset()
	}
	switch {
	case errors.Is(err, errBraked):
		s.begin = c.standStill(ctx)
		return true
	case err == nil: // half open went well
		if last.quarantine {
			s.cleared(ctx)
		}
		if last.probe {
			c.brake.calm()
		}
		return true
	case errors.Is(err, errGiveBack), errors.Is(err, errInHandTooLong):
		c.log.WarnContext(ctx, "deliveries given back", "queue", s.queue, "err", err)
		if errors.Is(err, errGiveBack) {
			patience := min(max(last.patience*2, c.cfg.GiveBackAfter), c.cfg.HoldLimit)
			s.begin = halfOpen{lanes: c.cfg.Lanes, size: 1, patience: patience}
		}
	case !s.endedByDelivery(ctx, err, lived):
		s.lost(ctx, err)
	case s.main && s.quarantine.ends < fastEnds:
		s.pause.Reset()
	}
	return false
}

// rest waits after a session, for d or until ctx ends. Before that it pays what the session owed, again and again while
// MySQL does not answer: a debt that had to wait as well would outlive its lease, and a copy of its message would take
// the claim over and count an attempt that nobody made.
func (c *engine) rest(ctx context.Context, d time.Duration) {
	began, pause := time.Now(), newBackOff()
	for {
		paying, cancel := context.WithTimeout(ctx, c.opTimeout)
		err := c.debts.pay(paying, c.records)
		cancel()
		left := d - time.Since(began)
		if err == nil || left <= 0 {
			_ = wait.For(ctx, left) // its end is seen by the caller
			return
		}
		_ = wait.For(ctx, min(left, pause.NextBackOff()))
	}
}

// ready waits until MySQL answers with a schema we can work with, every debt is paid, and Redis answers if nothing may
// be consumed without it. A schema that never was migrated ends the first start, because waiting would not help.
func (s *source) ready(ctx context.Context, first bool) error {
	c, pause := s.c, newBackOff()
	for {
		missing, err := DependencyMySQL, s.prepare(ctx)
		if err == nil {
			c.health.back(ctx, missing)
			missing, err = c.locks.name, c.locks.required()
		}
		if err == nil {
			c.health.back(ctx, missing)
			return nil
		}
		if ctx.Err() != nil || first && errors.Is(err, dedup.ErrSchema) {
			return err
		}
		c.health.missing(ctx, missing, err)
		if err := wait.For(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

func (s *source) prepare(ctx context.Context) error {
	c := s.c
	ctx, cancel := context.WithTimeout(ctx, c.opTimeout)
	defer cancel()
	if err := c.records.CheckSchema(ctx); err != nil {
		return err
	}
	if s.main {
		schemaID, err := c.records.SchemaID(ctx)
		if err != nil {
			return err
		}
		s.locker = schemaLock{c.locks.Locker, schemaID}
		c.locks.meet()
	}
	if err := c.debts.pay(ctx, c.records); err != nil {
		return err
	}
	return c.pause.look(ctx)
}

// halfOpen is how a session begins after the brake, or after all messages were given back: with few of them in hand,
// because each that is given back once more costs it one of its queue's delivery limit, and an outage may last for
// days. What answered in ready may still be away for the handler: a table, a right, a server that is read-only. It
// passes with the first batch of any lane, so that one message with a trouble of its own cannot fail it for all. The
// zero value is a session that is open.
type halfOpen struct {
	lanes, size int
	patience    time.Duration // before its batches are given back
	quarantine  bool          // it goes on until its queue is cleared of suspicion
	probe       bool          // it attempts few messages, until one of them is applied
}

// calm is how long nothing must come before the session has nothing left to find out; 0: for ever. What a probe waits
// for may lie in a retry queue.
func (h halfOpen) calm(cfg Config) time.Duration {
	switch {
	case h.quarantine:
		return calm
	case h.probe:
		return cfg.RetryDelays[len(cfg.RetryDelays)-1] + cfg.MaxDeadWindow
	}
	return 0
}

// session is one connection with its lanes, until intake ends or any lane fails. It returns the first failure, nil when
// intake ended or what was half open passed.
func (s *source) session(intake, work context.Context, h halfOpen) error {
	c := s.c
	s.stood, s.waited, s.came, s.acked = false, 0, 0, 0
	conn, err := rabbit.Dial(intake, s.amqp)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := c.declare(intake, conn); err != nil {
		return err
	}
	if s.quarantine.ends > 0 {
		if s.waited, _, err = conn.Depth(intake, s.queue); err != nil {
			return err
		}
	}
	s.stood = true
	lanes, err := s.openLanes(intake, conn, h)
	if err != nil {
		return err
	}
	clocks := make([]*laneClock, len(lanes))
	for i, l := range lanes {
		l.declare = func(ctx context.Context) error { return c.declare(ctx, conn) }
		clocks[i] = l.clock
	}
	s.stands(intake)
	c.health.set(intake, s.queue, s.main, clocks)
	defer c.health.set(intake, s.queue, s.main, nil)
	limit := 0
	if h.lanes > 0 && !h.quarantine {
		limit = 1
	}
	return s.runLanes(intake, work, lanes, limit)
}

// runLanes runs all lanes until intake ends or any of them does; limit is lane.run's.
func (s *source) runLanes(intake, work context.Context, lanes []*lane, limit int) error {
	running, stop := context.WithCancelCause(intake)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(func() { stop(l.run(running, work, limit)) })
	}
	wg.Wait()
	s.c.cancel(intake, lanes)
	for _, l := range lanes {
		s.came += l.sub.Came()
		s.acked += l.sub.Acked()
	}
	// Close: what was prefetched goes back to the queue, everything in hand is settled.
	if cause := context.Cause(running); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// cancel ends the consumers, when all lanes have acked their last, and before their channels close.
//
// Not before the acks: RabbitMQ holds back acks for a quorum queue that is slow to take them, once 32 commands of a
// channel are on their way, and forgets them with the channel. The answer to a cancel comes after those that the queue
// has taken, and the channel has sent the rest by then. And a cancel makes such commands itself: what is on its way to
// the consumer goes back.
//
// Not without it: the channels close one after the other, and what one gives back would be handed to the next, which
// gives it back again, and each time counts as a delivery.
func (c *engine) cancel(ctx context.Context, lanes []*lane) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cancelTimeout,
		fmt.Errorf("consumers not cancelled in %v", cancelTimeout))
	defer cancel()
	for _, l := range lanes {
		if err := l.sub.Cancel(ctx); err != nil {
			c.log.DebugContext(ctx, "cancel a consumer", "err", err) // the connection is gone, and the session with it
			return
		}
	}
}

const cancelTimeout = 5 * time.Second

func (s *source) openLanes(ctx context.Context, conn *rabbit.Conn, h halfOpen) ([]*lane, error) {
	n, size, prefetch := s.lanes, s.batch, s.prefetch
	if h.lanes > 0 {
		n, size, prefetch = min(n, h.lanes), h.size, h.size
	}
	lanes := make([]*lane, n)
	for i := range lanes {
		name, tag := fmt.Sprintf("%s/%d", s.c.name, i), i
		if !s.main {
			name, tag = s.c.name+"/backstop", s.c.cfg.Lanes
		}
		sub, err := conn.Consume(ctx, s.queue, rabbit.ConsumerTag(tag), prefetch)
		if err != nil {
			return nil, fmt.Errorf("lane %d of %s: %w", i, s.queue, err)
		}
		lanes[i] = &lane{
			c: s.c, name: name, sub: sub, locker: s.locker, clock: &laneClock{}, size: size, backstop: !s.main, halfOpen: h,
			atOnce: firstGroup,
		}
	}
	return lanes, nil
}
