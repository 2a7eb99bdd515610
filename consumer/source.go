package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/lock"
)

// source is a queue that the engine consumes, over a connection of its own: what ends the connections of one source,
// again and again perhaps, leaves the others alone. Its fields belong to the goroutine of sessions.
type source struct {
	c     *engine
	queue string
	amqp  rabbit.Config
	// locker is of the schema that the session meets.
	locker schemaLock
	// main: the main queue. Only its workers lock.
	main       bool
	quarantine quarantine
	begin      halfOpen // how the next session begins
	pause      *backoff.ExponentialBackOff
	// Of an ordinary session: its workers, and of each the size of a batch and how many deliveries it may have in hand.
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
		s.c.health.degraded(ctx, notConsumed, s.queue, nil)
	}
}

// rest waits after a session, for d or until ctx ends. Before that it gives back what the session has left pending,
// again and again while MySQL does not answer: one that had to wait as well would outlive its lease, and a copy of its
// message would take the claim over and count an attempt that nobody made.
func (c *engine) rest(ctx context.Context, d time.Duration) {
	began, pause := time.Now(), newBackOff()
	for {
		paying, cancel := context.WithTimeout(ctx, c.opTimeout)
		err := c.pending.settle(paying, c.records)
		cancel()
		left := d - time.Since(began)
		if err == nil || left <= 0 {
			_ = wait.For(ctx, left) // its end is seen by the caller
			return
		}
		_ = wait.For(ctx, min(left, pause.NextBackOff()))
	}
}

// halfOpen is how a session begins after the breaker, or after all messages were given back: with few of them in hand,
// because each that is given back once more costs it one of its queue's delivery limit, and an outage may last for
// days. What answered in ready may still be away for the handler: a table, a right, a server that is read-only. It
// passes with the first batch of any worker, so that one message with a trouble of its own cannot fail it for all. The
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

// quarantine finds the delivery that ends each connection on which it comes: a filter on the way, or something that the
// client library cannot read. Each end charges a delivery to everything in hand, innocents as well. So after two in a
// row the queue's next sessions are one worker with one delivery at a time. RabbitMQ delivers first what came back: the
// innocents among it pass, and then the culprit stands alone and is charged alone, until the delivery limit takes it to
// the backstop. The first delivery that was in no dead session's hands ends the quarantine.
//
// So much is a precaution, and says nothing. A delivery is blamed aloud when there was one: something came that was not
// acked, or messages waited in the queue when a session began after such an end. Neither is exact: the bytes of a
// delivery may never arrive here, and RabbitMQ puts it back when it notices the end, which a link that only falls
// silent delays by its heartbeats. That is why the precaution is taken in any case; on an idle queue it costs nothing.
//
// It belongs to the goroutine of its source's sessions.
type quarantine struct {
	ends int  // sessions in a row that ended so
	seen bool // and one of them had, or left in the queue, what may have ended it
}

const (
	// endsForgiven is how many connections in a row may end early before a delivery is suspected.
	endsForgiven = 1
	// early is how soon after its begin a session must end to be suspicious: what kills is delivered soon.
	early = time.Minute
	// calm is how long nothing must come before nothing is suspected any more: the culprit is somebody else's by now.
	calm = 10 * time.Second
	// fastEnds is how many ends are followed by the next session at once: enough for the delivery limit of the main queue.
	fastEnds = 250
)

func (q *quarantine) active() bool { return q.ends > endsForgiven }

// quarantined is one worker with one delivery at a time, until its queue is cleared of suspicion.
func quarantined(c *engine, next halfOpen) halfOpen {
	return halfOpen{lanes: 1, size: 1, patience: max(next.patience, c.cfg.GiveBackAfter), quarantine: true}
}

// endedByDelivery takes in that a session of s ended, and reports whether that is put down to a delivery: the
// connection is gone, soon after it was made, and less was acked than it could hold, so that the same deliveries come
// again; and there was one.
func (s *source) endedByDelivery(ctx context.Context, err error, lived time.Duration) bool {
	if !s.stood || !rabbit.IsBroken(err) {
		return false // it says nothing
	}
	if lived < early && s.acked < uint64(s.lanes*s.prefetch) {
		s.quarantine.ends++
		s.quarantine.seen = s.quarantine.seen || s.came > s.acked || s.waited > 0
	} else {
		s.quarantine = quarantine{}
	}
	if !s.quarantine.active() || !s.quarantine.seen {
		return false
	}
	s.stands(ctx) // it is not RabbitMQ that is missing
	s.c.health.degraded(ctx, endsConnections, s.queue, fmt.Errorf("something in it ended the last %d connections on "+
		"which it was delivered; one message is taken at a time until it stands alone. %s: %w",
		s.quarantine.ends, s.advice(), err))
	return true
}

func (s *source) advice() string {
	if s.main {
		return "RabbitMQ moves it to " + rabbit.BackstopQueue(s.queue) + " after its delivery limit; look for what cuts " +
			"the connection, a filter or a proxy on the way"
	}
	return "Look for what cuts the connection, a filter or a proxy on the way, or take the first message of the queue " +
		"out by hand"
}

// cleared ends the quarantine.
func (s *source) cleared(ctx context.Context) {
	s.quarantine = quarantine{}
	s.c.health.degraded(ctx, endsConnections, s.queue, nil)
}

// errCalm ends the wait of a worker in quarantine for the next delivery.
var errCalm = errors.New("nothing was delivered for a while")

// fromNobody reports whether a batch was in nobody's hands before, which clears its queue of suspicion.
func (b *batch) fromNobody() bool { return len(b.all) > 0 && b.all[0].delivery.Count == 0 }
