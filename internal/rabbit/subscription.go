package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// MaxPrefetch is the largest prefetch: AMQP carries 16 bits, and the client sends 70000 as 4464 without a word.
const MaxPrefetch = 65535

// Subscription is one consumer on a channel of its own. Collect is for one goroutine at a time; everything else is safe for many.
type Subscription struct {
	conn  *Conn
	ch    *amqp.Channel
	queue string
	tag   string

	in      <-chan amqp.Delivery // closed by the client when the consumer is over; only Collect reads it
	closes  <-chan *amqp.Error   // why the channel closed
	linger  *time.Timer          // Collect's, kept because a lane collects for ever
	asking  sync.Mutex           // one question at a time on ch: the client cannot tell two answers apart
	mu      sync.Mutex           // guards what is below
	open    outstanding
	stopped bool  // Cancel was called
	end     error // why nothing more comes
}

// Consume starts a consumer on a channel of its own with manual acknowledgement. At most prefetch deliveries, 1 to 65535, are
// unacked at a time; the limit is per consumer, because quorum queues close the connection on a global one.
// consumerTag is shown on the management page and must not be empty.
func (c *Conn) Consume(ctx context.Context, queue, consumerTag string, prefetch int) (*Subscription, error) {
	if prefetch < 1 || prefetch > MaxPrefetch {
		return nil, fmt.Errorf("consume from %q: prefetch %d is outside 1 to %d", queue, prefetch, MaxPrefetch)
	}
	if consumerTag == "" {
		return nil, fmt.Errorf("consume from %q: empty consumer tag", queue)
	}
	s := &Subscription{conn: c, queue: queue, tag: consumerTag, open: outstanding{floor: 1}}
	err := c.ask(ctx, fmt.Sprintf("consume from %q", queue), func() error { return s.start(prefetch) })
	if err != nil {
		return nil, err
	}
	s.linger = time.NewTimer(time.Hour)
	s.linger.Stop()
	return s, nil
}

func (s *Subscription) start(prefetch int) error {
	ch, err := s.conn.amqp.Channel()
	if err != nil {
		return err
	}
	s.ch = ch
	s.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
	if err := ch.Qos(prefetch, 0, false); err != nil {
		return errors.Join(err, ch.Close())
	}
	s.in, err = ch.Consume(s.queue, s.tag, !autoAck, !exclusive, !noLocal, !noWait, nil)
	if err != nil {
		return errors.Join(err, ch.Close())
	}
	return nil
}

// Collect waits for one delivery, then takes what comes until limit are there or linger has passed, and returns them
// appended to buf[:0]. If it had to wait for the first one, half a linger of silence is enough: where deliveries come
// seldom, waiting longer only delays the one in hand. It returns an error only without deliveries: the cause of ctx, or
// why the subscription is over, for which Err says the same. The end of a subscription is always something to handle: a
// broker can end it and leave the connection open.
func (s *Subscription) Collect(ctx context.Context, limit int, linger time.Duration, buf []Delivery) ([]Delivery, error) {
	buf = buf[:0]
	if limit < 1 {
		return buf, fmt.Errorf("collect from %q: limit %d is below 1", s.queue, limit)
	}
	buf = s.fillReady(limit, buf)
	silence := linger
	if len(buf) == 0 {
		silence /= 2
		select {
		case d, ok := <-s.in:
			if !ok {
				return buf, s.over()
			}
			buf = append(buf, fromClient(&d))
		case <-ctx.Done():
			return buf, context.Cause(ctx)
		}
	}
	buf = s.fill(ctx, limit, linger, silence, buf)
	s.mu.Lock()
	s.open.delivered(buf[len(buf)-1].Tag)
	s.mu.Unlock()
	return buf, nil
}

func (s *Subscription) fill(ctx context.Context, limit int, linger, silence time.Duration, buf []Delivery) []Delivery {
	end := time.Now().Add(linger)
	defer s.linger.Stop()
	for {
		if buf = s.fillReady(limit, buf); len(buf) == limit || linger <= 0 {
			return buf
		}
		s.linger.Reset(min(silence, time.Until(end)))
		select {
		case d, ok := <-s.in:
			if !ok {
				return buf // the next Collect says why
			}
			buf = append(buf, fromClient(&d))
		case <-s.linger.C:
			return buf
		case <-ctx.Done():
			return buf
		}
	}
}

func (s *Subscription) fillReady(limit int, buf []Delivery) []Delivery {
	for len(buf) < limit {
		select {
		case d, ok := <-s.in:
			if !ok {
				return buf
			}
			buf = append(buf, fromClient(&d))
		default:
			return buf
		}
	}
	return buf
}

// over finds out, once, why the client closed the deliveries.
func (s *Subscription) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return s.end
	}
	switch {
	case s.ch.IsClosed():
		s.end = fmt.Errorf("consumer on %q: %w", s.queue, s.whyClosed())
	case s.stopped:
		s.end = ErrCancelled
	default:
		s.end = fmt.Errorf("consumer on %q: %w", s.queue, ErrConsumerCancelled)
	}
	return s.end
}

func (s *Subscription) whyClosed() error {
	select {
	case e, ok := <-s.closes:
		if ok && e != nil {
			return translate(e)
		}
	default:
	}
	if s.stopped {
		return ErrCancelled
	}
	return ErrClosed
}

// Err says why the subscription is over, once Collect has met its end; nil before.
func (s *Subscription) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}

// Ack tells the broker to forget a delivery; multiple means this one and every unsettled one before it.
// An error means that it was not told: ErrNotOutstanding, or the channel is over and the broker will deliver again.
func (s *Subscription) Ack(tag uint64, multiple bool) error {
	return s.settle("ack", tag, multiple, s.ch.Ack)
}

// Requeue gives a delivery back, to be delivered again soon; multiple as for Ack. On RabbitMQ 3 it costs the message one of its
// queue's delivery limit.
func (s *Subscription) Requeue(tag uint64, multiple bool) error {
	return s.settle("requeue", tag, multiple, func(tag uint64, multiple bool) error {
		const requeue = true
		return s.ch.Nack(tag, multiple, requeue)
	})
}

func (s *Subscription) settle(verb string, tag uint64, multiple bool, send func(uint64, bool) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.open.settle(tag, multiple)
	if err == nil {
		err = translate(send(tag, multiple))
	}
	if err != nil {
		return fmt.Errorf("%s delivery %d of %q: %w", verb, tag, s.queue, err)
	}
	return nil
}

// Cancel asks the broker to deliver nothing more. What has been delivered stays with us and can be collected, acknowledged and
// requeued; when all is collected, Collect returns ErrCancelled.
func (s *Subscription) Cancel(ctx context.Context) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	again := s.stopped
	s.stopped = true
	s.mu.Unlock()
	if again || s.ch.IsClosed() {
		return nil
	}
	return s.conn.ask(ctx, fmt.Sprintf("cancel consumer on %q", s.queue), func() error {
		const waitForAnswer = false
		return s.ch.Cancel(s.tag, waitForAnswer)
	})
}

// Close ends the channel: everything unacked goes back to the queue. It waits at most CloseTimeout, then the connection is
// given up. Closing twice is harmless.
func (s *Subscription) Close() error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.conn.cfg.CloseTimeout,
		fmt.Errorf("RabbitMQ at %s gave no answer in %v", s.conn.where, s.conn.cfg.CloseTimeout))
	defer cancel()
	err := s.conn.ask(ctx, fmt.Sprintf("close consumer on %q", s.queue), s.ch.Close)
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}
