package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
)

// pausedByBreaker is the breaker's name among the reasons for a pause.
const pausedByBreaker = "max_dead_rate"

// sessions keeps one session after the other until intake ends. Everything is made anew for each: connection, channels
// and workers share nothing with those of a session that failed.
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
		case s.c.breaker.Spaces():
			s.begin = probing(s.c, s.begin)
		default:
			s.c.health.back(intake, pausedByBreaker)
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
		case errors.Is(err, rabbit.ErrClassic), errors.Is(err, runner.ErrManyStuck):
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
	case errors.Is(err, errTripped):
		s.begin = c.standStill(ctx)
		return true
	case err == nil: // half open went well
		if last.quarantine {
			s.cleared(ctx)
		}
		if last.probe {
			c.breaker.Calm()
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

// ready waits until MySQL answers with a schema we can work with, every pending claim is given back, and Redis answers
// if nothing may be consumed without it. A schema that never was migrated ends the first start, because waiting would
// not help.
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
	if err := c.pending.settle(ctx, c.records); err != nil {
		return err
	}
	return c.pause.look(ctx)
}

// session is one connection with its workers, until intake ends or any worker fails. It returns the first failure, nil
// when intake ended or what was half open passed.
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

// runLanes runs all workers until intake ends or any of them does; limit is worker.run's.
func (s *source) runLanes(intake, work context.Context, lanes []*worker, limit int) error {
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

// cancel ends the consumers, when all workers have acked their last, and before their channels close.
//
// Not before the acks: RabbitMQ holds back acks for a quorum queue that is slow to take them, once 32 commands of a
// channel are on their way, and forgets them with the channel. The answer to a cancel comes after those that the queue
// has taken, and the channel has sent the rest by then. And a cancel makes such commands itself: what is on its way to
// the consumer goes back.
//
// Not without it: the channels close one after the other, and what one gives back would be handed to the next, which
// gives it back again, and each time counts as a delivery.
func (c *engine) cancel(ctx context.Context, lanes []*worker) {
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

func (s *source) openLanes(ctx context.Context, conn *rabbit.Conn, h halfOpen) ([]*worker, error) {
	n, size, prefetch := s.lanes, s.batch, s.prefetch
	if h.lanes > 0 {
		n, size, prefetch = min(n, h.lanes), h.size, h.size
	}
	lanes := make([]*worker, n)
	for i := range lanes {
		name, tag := fmt.Sprintf("%s/%d", s.c.name, i), i
		if !s.main {
			name, tag = s.c.name+"/backstop", s.c.cfg.Lanes
		}
		sub, err := conn.Consume(ctx, s.queue, rabbit.ConsumerTag(tag), prefetch)
		if err != nil {
			return nil, fmt.Errorf("lane %d of %s: %w", i, s.queue, err)
		}
		lanes[i] = &worker{
			c: s.c, name: name, sub: sub, acks: sub, locker: s.locker, clock: &laneClock{}, size: size, backstop: !s.main,
			halfOpen: h, atOnce: firstGroup,
		}
	}
	return lanes, nil
}

// standStill is the pause of the breaker, and how the next session begins.
func (c *engine) standStill(ctx context.Context) halfOpen {
	d, why := c.breaker.Pause()
	if d <= 0 {
		return halfOpen{}
	}
	c.health.missing(ctx, pausedByBreaker, why)
	c.rest(ctx, d)
	return halfOpen{lanes: 1, size: c.cfg.BatchSize, patience: c.cfg.GiveBackAfter}
}

// probing is one worker that attempts few messages. With how many in hand is for what the session before has met: after
// deliveries were given back it is one, for longer each time, because they may have to be given back again.
func probing(c *engine, next halfOpen) halfOpen {
	size := c.cfg.BatchSize
	if next.lanes > 0 {
		size = next.size
	}
	return halfOpen{lanes: 1, size: size, patience: max(next.patience, c.cfg.GiveBackAfter), probe: true}
}
