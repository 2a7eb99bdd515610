package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// MaxPrefetch is the largest prefetch: AMQP carries 16 bits, and the client sends 70000 as 4464 without a word.
const MaxPrefetch = 65535

// Subscription is one consumer on a channel of its own. Collect is for one goroutine at a time; everything else is safe
// for many.
type Subscription struct {
	conn     *Conn
	ch       *amqp.Channel
	queue    string
	name     string // the consumer tag, but for a number
	prefetch int
	acquired bool // the broker writes x-acquired-count
	ledger   ledger

	// Collect's: the consumer of the moment, and its timer, kept because a lane collects for ever.
	in        <-chan amqp.Delivery // closed by the client when the consumer is over
	over      bool                 // it is, because we retired it
	window    int                  // of deliveries that the consumer may have unsettled
	began     uint64               // the last delivery before it
	epoch     uint64               // of the budget when it began
	unloaded  int                  // deliveries of its window that only take up room there
	consumers int                  // how many there were
	shed      []uint64             // deliveries that must go back
	linger    *time.Timer

	closes  <-chan *amqp.Error // why the channel closed
	cancels <-chan string      // the tag of a consumer that the broker cancelled; closed with the channel
	acked   atomic.Uint64      // how many deliveries
	asking  sync.Mutex         // one question at a time on ch: the client cannot tell two answers apart
	mu      sync.Mutex         // guards what is below, and is held while deliveries are settled
	tag     string             // of the consumer of the moment
	retired bool               // it was cancelled to make room for one with another window
	stopped bool               // Cancel was called
	end     error              // why nothing more comes
}

// Consume starts a consumer on a channel of its own with manual acknowledgement. At most prefetch deliveries, 1 to
// 65535, are unacked at a time, fewer if the connection has a [Budget]; the limit is per consumer, because quorum
// queues close the connection on a global one. consumerTag is shown on the management page, with a number behind it
// after the first change of the window or if another subscription of the connection has it, and must not be empty.
func (c *Conn) Consume(ctx context.Context, queue, consumerTag string, prefetch int) (*Subscription, error) {
	if prefetch < 1 || prefetch > MaxPrefetch {
		return nil, fmt.Errorf("consume from %q: prefetch %d is outside 1 to %d", queue, prefetch, MaxPrefetch)
	}
	if consumerTag == "" {
		return nil, fmt.Errorf("consume from %q: empty consumer tag", queue)
	}
	s := &Subscription{
		conn: c, queue: queue, name: consumerTag, prefetch: prefetch, acquired: countsAcquired(c.ServerVersion()),
		ledger: ledger{budget: c.cfg.Budget},
	}
	err := c.openChannel(ctx, fmt.Sprintf("consume from %q", queue), s.start)
	if err != nil {
		return nil, err
	}
	s.ledger.budget.add(s)
	s.linger = time.NewTimer(time.Hour)
	s.linger.Stop()
	return s, nil
}

func (s *Subscription) start(ch *amqp.Channel) error {
	s.ch = ch
	s.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
	s.cancels = ch.NotifyCancel(make(chan string, 1)) // the client's reader waits for room in it
	s.epoch, s.window = s.ledger.budget.now(), s.Window()
	return s.consume()
}

// consume begins a consumer with the window of the moment. RabbitMQ mixes the deliveries of two consumers up that have
// the same tag one after the other, so each has its own.
func (s *Subscription) consume() error {
	tag := s.nextTag()
	select {
	case <-s.cancels: // in the moment in which we retired it, the broker cancelled the one before
	default:
	}
	if err := s.ch.Qos(s.window, 0, false); err != nil {
		return err
	}
	for !s.conn.socket.frames.watch(tag, &s.ledger) {
		tag = s.nextTag()
	}
	in, err := s.ch.Consume(s.queue, tag, !autoAck, !exclusive, !noLocal, !noWait, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.in, s.tag, s.over, s.retired = in, tag, false, false
	return nil
}

func (s *Subscription) nextTag() string {
	if s.consumers++; s.consumers > 1 {
		return fmt.Sprintf("%s/%d", s.name, s.consumers)
	}
	return s.name
}

// Collect waits for one delivery, then takes what comes until limit are there or linger has passed, and returns them
// appended to buf[:0]. If it had to wait for the first one, half a linger of silence is enough: where deliveries come
// seldom, waiting longer only delays the one in hand. It returns an error only without deliveries: the cause of ctx,
// ErrNoRoom, after which it may be called again, or why the subscription is over. The end
// of a subscription is always something to handle: a broker can end it and leave the connection open.
func (s *Subscription) Collect(
	ctx context.Context, limit int, linger time.Duration, buf []Delivery,
) ([]Delivery, error) {
	buf = buf[:0]
	if limit < 1 {
		return buf, fmt.Errorf("collect from %q: limit %d is below 1", s.queue, limit)
	}
	silence := linger
	for len(buf) == 0 {
		if err := s.fit(ctx); err != nil {
			s.giveBack(ctx)
			return buf, err
		}
		if buf = s.fill(ctx, limit, 0, 0, buf); len(buf) > 0 {
			break
		}
		s.giveBack(ctx)
		silence = linger / 2
		select {
		case d, ok := <-s.in:
			switch {
			case ok:
				buf = s.take(&d, buf)
			case s.betweenConsumers():
				s.over = true
			default:
				return buf, s.ended()
			}
		case <-ctx.Done():
			return buf, context.Cause(ctx)
		}
	}
	buf = s.fill(ctx, limit, linger, silence, buf)
	s.giveBack(ctx)
	s.ledger.hand(buf[len(buf)-1].Tag)
	if !s.over {
		_ = s.fit(ctx) // while nothing of it is settled; it fails with the connection, which the next call says
	}
	return buf, nil
}

// HasRoom reports whether Collect can take anything: false where it would return ErrNoRoom. For the goroutine that
// collects.
func (s *Subscription) HasRoom() bool {
	return !s.over || s.ledger.budget.window(s.prefetch, s.ledger.holds(s.ledger.last())) > 0
}

// Unload says that the body of an unsettled delivery is in memory no more, so that others may come in its place. For
// the goroutine that collects.
func (s *Subscription) Unload(tag uint64) {
	s.ledger.unload(tag)
	if tag > s.began {
		s.unloaded++
	}
}

// Rest lets d pass without taking anything. It returns the cause of ctx when that ends before, and why the subscription
// is over when its channel closes or the broker cancels its consumer.
func (s *Subscription) Rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.cancels:
		return s.ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take hands a delivery on, or sets it aside.
func (s *Subscription) take(d *amqp.Delivery, buf []Delivery) []Delivery {
	known := s.ledger.take(d.DeliveryTag)
	if known.shed {
		s.shed = append(s.shed, d.DeliveryTag)
		return buf
	}
	if known.headers != nil {
		d.Headers = known.headers
	}
	got := fromClient(d, s.acquired)
	got.Came = known.came
	return append(buf, got)
}

// fill takes what is there and what comes, until limit are, nothing has come for a silence, or linger is over. Why the
// deliveries end, the next Collect says.
func (s *Subscription) fill(ctx context.Context, limit int, linger, silence time.Duration, buf []Delivery) []Delivery {
	end := time.Now().Add(linger)
	defer s.linger.Stop()
	for len(buf) < limit {
		var d amqp.Delivery
		var ok bool
		select {
		case d, ok = <-s.in:
		default:
			if linger <= 0 {
				return buf
			}
			s.linger.Reset(min(silence, time.Until(end)))
			select {
			case d, ok = <-s.in:
			case <-s.linger.C:
			case <-ctx.Done():
			}
		}
		if !ok {
			return buf
		}
		buf = s.take(&d, buf)
	}
	return buf
}

// fit lets the window follow the budget. When it must change much, the consumer is retired; what came before that is
// handed out first, and then the next one begins. While there is no room for anything more, none does: ErrNoRoom.
//
// A quorum queue gives back what is on its way to a consumer that is cancelled, one delivery older. So a window
// grows only while all of it is in hand: then nothing is on its way, and only then is it too small. That is looked
// at where a batch is taken and where it is acked: one that is half of a window fills it only meanwhile. It is
// enough also for a lane that settles faster than the broker delivers: with 100,000 small messages, a budget of 64
// MiB for five and a prefetch of 2,000, windows went from 30 to 2,000 within 0.15 s, in batches of 1,000, 50 and 1,
// with and without a linger. All of it took as long as without a budget, give or take a fifth, either way.
func (s *Subscription) fit(ctx context.Context) error {
	b := s.ledger.budget
	if b == nil || ctx.Err() != nil { // then nothing more is wanted
		return nil
	}
	ctx = context.WithoutCancel(ctx) // a question that is given up costs the connection
	if !s.over {
		wanted := b.window(s.prefetch, s.ledger.holds(s.began))
		wider := wanted >= 2*s.window || wanted > s.window && wanted == s.prefetch
		narrower := 2*wanted <= s.window && s.window > 1
		blocked := 2*s.unloaded >= max(2, s.window)
		if narrower || blocked || wider && s.ledger.full(s.began, s.window) {
			return s.endConsumer(ctx, false)
		}
		return nil
	}
	epoch, began := b.now(), s.ledger.last()
	window := b.window(s.prefetch, s.ledger.holds(began))
	s.asking.Lock()
	defer s.asking.Unlock()
	if !s.betweenConsumers() {
		return s.ended()
	}
	if window == 0 {
		return fmt.Errorf("collect from %q: %w", s.queue, ErrNoRoom)
	}
	s.epoch, s.began, s.window, s.unloaded = epoch, began, window, 0
	return s.conn.ask(ctx, fmt.Sprintf("consume from %q", s.queue), s.consume)
}

// giveBack requeues what was shed, after all windows are narrow: else it would come to the next lane, and be shed
// there. Nothing behind it is handed out before, so that no ack of many includes it.
func (s *Subscription) giveBack(ctx context.Context) {
	if len(s.shed) == 0 {
		return
	}
	_ = s.ledger.budget.narrow(context.WithoutCancel(ctx), s.epoch) // fails with the connection, and all ends
	s.ledger.hand(s.shed[len(s.shed)-1])
	for _, tag := range s.shed {
		_ = s.Requeue(tag, false) // a channel that is over gives it back by itself
	}
	s.shed = s.shed[:0]
}

// endConsumer ends the consumer of the moment, to be followed by another one or for ever.
func (s *Subscription) endConsumer(ctx context.Context, forever bool) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	tag, retired, again := s.tag, s.retired, s.stopped || s.retired && !forever
	s.retired, s.stopped = retired || !forever, s.stopped || forever
	s.mu.Unlock()
	switch {
	case again || s.ch.IsClosed():
		return nil
	case retired:
		return s.askQueue(ctx)
	}
	return s.conn.ask(ctx, fmt.Sprintf("cancel consumer on %q", s.queue), func() error {
		return s.ch.Cancel(tag, !noWait)
	})
}

// betweenConsumers reports whether the end of the deliveries is our own doing and another consumer shall follow.
func (s *Subscription) betweenConsumers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired && !s.stopped && !s.ch.IsClosed()
}

// ended finds out, once, why the client closed the deliveries.
func (s *Subscription) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return s.end
	}
	why, closed := ErrConsumerCancelled, s.ch.IsClosed()
	switch {
	case s.stopped:
		why = ErrCancelled
	case closed:
		why = ErrClosed
	}
	if closed {
		select {
		case e := <-s.closes:
			if e != nil {
				why = translate(e)
			}
		default:
		}
	}
	s.end = fmt.Errorf("consumer on %q: %w", s.queue, why)
	return s.end
}

// Acked is how many deliveries were acked, in whatever order. Those that were given back come again and do not count.
func (s *Subscription) Acked() uint64 { return s.acked.Load() }

// Came is how many deliveries have come, also those whose bodies did not arrive, and each time that one came.
func (s *Subscription) Came() uint64 { return s.ledger.last() }

// Window is how many deliveries may be unsettled at a time when their bodies are as large as those that came last: the
// prefetch, or fewer because of the budget.
func (s *Subscription) Window() int {
	return s.ledger.budget.window(s.prefetch, 0)
}

// Ack tells the broker to forget a delivery; multiple means this one and every unsettled one before it.
// An error means that it was not told: ErrNotOutstanding, or the channel is over and the broker will deliver again.
func (s *Subscription) Ack(tag uint64, multiple bool) error {
	n, err := s.settle("ack", tag, multiple, s.ch.Ack)
	s.acked.Add(n)
	return err
}

// AckAll tells the broker to forget these deliveries, whose tags ascend, and no others: those at the beginning, as far
// as nothing older is unsettled, at once, which costs a quorum queue little more than one ack, and the rest one by one.
// An error means that the broker was not told of all of them, as for Ack. For the goroutine that collects.
func (s *Subscription) AckAll(tags []uint64) error {
	if !s.over {
		_ = s.fit(context.Background()) // now the window is full, if it is too small; it fails with the connection
	}
	n := s.ledger.leading(tags)
	if n > 1 {
		if err := s.Ack(tags[n-1], true); err != nil {
			return err
		}
		tags = tags[n:]
	}
	for _, tag := range tags {
		if err := s.Ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}

// Requeue gives a delivery back, to be delivered again soon; multiple as for Ack. On RabbitMQ 3 it costs the message
// one of its queue's delivery limit.
func (s *Subscription) Requeue(tag uint64, multiple bool) error {
	const requeue = true
	_, err := s.settle("requeue", tag, multiple, func(tag uint64, multiple bool) error {
		return s.ch.Nack(tag, multiple, requeue)
	})
	return err
}

// settle says how many deliveries the broker was told of.
func (s *Subscription) settle(
	verb string, tag uint64, multiple bool, send func(uint64, bool) error,
) (n uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err = s.ledger.settle(tag, multiple)
	if err == nil {
		err = translateOpen(send(tag, multiple))
	}
	if err != nil {
		return 0, fmt.Errorf("%s delivery %d of %q: %w", verb, tag, s.queue, err)
	}
	return n, nil
}

// Cancel asks the broker to deliver nothing more. What has been delivered stays with us and can be collected,
// acknowledged and requeued; when all is collected, Collect returns ErrCancelled.
//
// Its answer comes after RabbitMQ has handed the queue all acks that were sent before: a channel may close then.
func (s *Subscription) Cancel(ctx context.Context) error { return s.endConsumer(ctx, true) }

// askQueue asks the queue something that it answers after the acks before it, while there is no consumer to end: one
// begins and ends. Of the questions of AMQP only these two wait for a quorum queue. A message that comes for it goes
// back with the channel.
func (s *Subscription) askQueue(ctx context.Context) error {
	return s.conn.ask(ctx, fmt.Sprintf("ask %q for acks", s.queue), func() error {
		if err := s.ch.Qos(1, 0, false); err != nil {
			return err
		}
		tag := s.name + "/end"
		if _, err := s.ch.Consume(s.queue, tag, !autoAck, !exclusive, !noLocal, !noWait, nil); err != nil {
			return err
		}
		return s.ch.Cancel(tag, !noWait)
	})
}

// Close ends the channel: everything unacked goes back to the queue. It waits at most CloseTimeout, then the connection
// is given up. Closing twice is harmless.
func (s *Subscription) Close() error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	err := s.conn.askWithin(context.Background(), s.conn.cfg.CloseTimeout, fmt.Sprintf("close consumer on %q", s.queue),
		s.ch.Close)
	s.conn.socket.frames.forget(&s.ledger)
	if errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}
