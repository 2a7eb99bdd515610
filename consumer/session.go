package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// pausedByBrake is the brake's name among the reasons for a pause.
const pausedByBrake = "max_dead_rate"

// sessions keeps one session after the other until intake ends. Everything is made anew for each: connections, channels
// and lanes share nothing with those of a session that failed.
func (c *Consumer) sessions(intake, work context.Context) error {
	defer c.close(work)
	pause := newBackOff()
	var next trial
	for first := true; intake.Err() == nil; first = false {
		if err := c.ready(intake, work, first); err != nil {
			if intake.Err() != nil {
				return nil
			}
			return err
		}
		began := time.Now()
		last := next
		err := c.session(intake, work, last)
		next = trial{}
		switch {
		case intake.Err() != nil:
			if cause := context.Cause(work); cause != nil {
				return cause
			}
			return nil
		case errors.Is(err, errBraked):
			c.health.missing(intake, pausedByBrake, fmt.Errorf("over %d dead letters in %v, and more than half of all: trying one batch after %v", c.cfg.MaxDead, c.cfg.MaxDeadWindow, c.cfg.BrakePause))
			_ = sleep(intake, c.cfg.BrakePause) // its end is seen by the loop
			c.brake.reset()
			c.health.back(intake, pausedByBrake)
			next = trial{lanes: 1, size: c.cfg.BatchSize, patience: c.cfg.GiveBackAfter}
			continue
		case err == nil: // the trial went well
			continue
		case errors.Is(err, errGiveBack):
			c.log.WarnContext(intake, "deliveries given back", "err", err)
			next = trial{lanes: c.cfg.Lanes, size: 1, patience: min(max(last.patience*2, c.cfg.GiveBackAfter), c.cfg.HoldLimit)}
		case errors.Is(err, errHeldTooLong):
			c.log.WarnContext(intake, "deliveries given back", "err", err)
		default:
			c.health.missing(intake, DependencyRabbitMQ, err)
		}
		if time.Since(began) > 10*time.Second {
			pause.Reset()
		}
		_ = sleep(intake, pause.NextBackOff())
	}
	return nil
}

// ready waits until MySQL answers with a schema we can work with, every debt is paid, and Redis answers if nothing may
// be consumed without it. A schema that never was migrated ends the first start, because waiting would not help.
func (c *Consumer) ready(ctx, work context.Context, first bool) error {
	pause := newBackOff()
	for {
		err := c.prepare(ctx, work)
		missing := DependencyMySQL
		if err == nil {
			c.health.back(ctx, missing)
			missing, err = DependencyRedis, c.locks.required()
		}
		if err == nil {
			c.health.back(ctx, missing)
			return nil
		}
		if ctx.Err() != nil || first && errors.Is(err, dedup.ErrSchema) {
			return err
		}
		c.health.missing(ctx, missing, err)
		if err := sleep(ctx, pause.NextBackOff()); err != nil {
			return err
		}
	}
}

func (c *Consumer) prepare(intake, work context.Context) error {
	ctx, cancel := context.WithTimeout(intake, c.opTimeout)
	defer cancel()
	if err := c.records.CheckSchema(ctx); err != nil {
		return err
	}
	schemaID, err := c.records.SchemaID(ctx)
	if err != nil {
		return err
	}
	if c.locker, err = c.locks.use(work, schemaID); err != nil {
		return err
	}
	return c.debts.pay(ctx, c.records)
}

// trial is how a session begins after all messages were given back: with few of them in hand, because each that is given
// back once more costs it one of its queue's delivery limit, and an outage may last for days. What answered in ready may
// still be away for the handler: a table, a right, a server that is read-only. The trial passes with the first batch of any
// lane, so that one message with a trouble of its own cannot fail it for all. The zero trial is none.
type trial struct {
	lanes, size int
	patience    time.Duration // before its batches are given back
}

// session is one connection with its lanes, until intake ends or any lane fails. It returns the first failure, nil when
// intake ended or its trial passed.
func (c *Consumer) session(intake, work context.Context, t trial) error {
	conn, err := rabbit.Dial(intake, c.amqp)
	if err != nil {
		return err
	}
	defer conn.Close()
	declare := rabbit.Declare
	if c.declared {
		declare = rabbit.Redeclare
	}
	warnings, err := declare(intake, conn, c.topology)
	if err != nil {
		return err
	}
	c.declared = true
	for _, w := range warnings {
		if !c.warned[w] { // a reconnect makes no news of it
			c.warned[w] = true
			c.log.WarnContext(intake, w)
		}
	}
	lanes, err := c.openLanes(intake, conn, t)
	if err != nil {
		return err
	}
	clocks := make([]*laneClock, len(lanes))
	for i, l := range lanes {
		clocks[i] = l.clock
	}
	c.health.back(intake, DependencyRabbitMQ)
	c.health.set(true, clocks...)
	defer c.health.set(false)

	limit := 0
	if t.lanes > 0 {
		limit = 1
	}
	running, stop := context.WithCancelCause(intake)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(func() { stop(l.run(running, work, limit)) })
	}
	wg.Go(func() {
		<-running.Done()
		c.cancel(intake, lanes)
	})
	wg.Wait()
	// Close: what was prefetched goes back to the queue, everything in hand is settled.
	if cause := context.Cause(running); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// cancel ends the consumers before their channels close one after the other: what one gives back would else be handed to
// the next, which gives it back again, and each time counts as a delivery.
func (c *Consumer) cancel(ctx context.Context, lanes []*lane) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cancelTimeout, fmt.Errorf("consumers not cancelled in %v", cancelTimeout))
	defer cancel()
	for _, l := range lanes {
		if err := l.sub.Cancel(ctx); err != nil {
			c.log.DebugContext(ctx, "cancel a consumer", "err", err) // the connection is gone, and the session with it
			return
		}
	}
}

const cancelTimeout = 5 * time.Second

func (c *Consumer) openLanes(ctx context.Context, conn *rabbit.Conn, t trial) ([]*lane, error) {
	n, size, prefetch := c.cfg.Lanes, c.cfg.BatchSize, c.cfg.Prefetch
	if t.lanes > 0 {
		n, size, prefetch = t.lanes, t.size, t.size
	}
	lanes := make([]*lane, 0, n)
	for i := range n {
		name := fmt.Sprintf("%s/%d", c.name, i)
		sub, err := conn.Consume(ctx, c.cfg.Queue, rabbit.ConsumerTag(i), prefetch)
		if err != nil {
			return nil, fmt.Errorf("lane %d: %w", i, err)
		}
		l := &lane{c: c, name: name, sub: sub, clock: &laneClock{}, size: size, trial: t}
		l.life = l.process
		lanes = append(lanes, l)
	}
	if t.lanes > 0 {
		return lanes, nil
	}
	sub, err := conn.Consume(ctx, rabbit.BackstopQueue(c.cfg.Queue), rabbit.ConsumerTag(n), backstopBatch)
	if err != nil {
		return nil, fmt.Errorf("backstop: %w", err)
	}
	l := &lane{c: c, name: c.name + "/backstop", sub: sub, clock: &laneClock{}, size: backstopBatch, backstop: true}
	l.life = l.processBackstop
	return append(lanes, l), nil
}

// backstopBatch is how many of the broker's own dead letters are taken at once.
const backstopBatch = 50

// close ends what outlives a session: unpaid debts, one last try; then the publisher.
func (c *Consumer) close(work context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(work), time.Second)
	defer cancel()
	if err := c.debts.pay(ctx, c.records); err != nil {
		c.log.WarnContext(ctx, "claims stay until their lease ends", "err", err)
	}
	c.locks.close()
	if err := c.publisher.Close(ctx); err != nil { // what it had to publish was confirmed, or its message not acked
		c.log.WarnContext(ctx, "close the publisher", "err", err)
	}
}
