package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"
)

// window is how many messages of a session may wait for their confirmation. The channel for returned messages has room
// for as many: the client's reader must never wait for it, as it drops a return after 5 s.
const window = 1000

// session is one publishing connection with its channel in confirm mode.
type session struct {
	conn  *Conn
	born  time.Time
	users sync.WaitGroup // who publish on it

	slots *semaphore.Weighted // one for each message that may wait for its confirmation
	why   func() error        // says what closed the channel, once confirmations are resolved by that

	mu      sync.Mutex // guards what is below; held while sending, since the client's channels are for one goroutine
	ch      *amqp.Channel
	returns <-chan amqp.Return
	flight  flight
}

type route struct{ exchange, key string }

func (r route) String() string {
	if r.exchange == "" {
		return fmt.Sprintf("queue %q", r.key)
	}
	return fmt.Sprintf("exchange %q with routing key %q", r.exchange, r.key)
}

func openSession(ctx context.Context, cfg Config) (*session, error) {
	conn, err := Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, born: time.Now(), slots: semaphore.NewWeighted(window), flight: make(flight, window)}
	err = conn.openChannel(ctx, "open a publishing channel", func(ch *amqp.Channel) error {
		closes := ch.NotifyClose(make(chan *amqp.Error, 1))
		s.why = sync.OnceValue(func() error {
			if e, ok := <-closes; ok {
				return translate(e)
			}
			return ErrClosed
		})
		s.ch, s.returns = ch, ch.NotifyReturn(make(chan amqp.Return, window))
		return ch.Confirm(!noWait)
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// publish sends the messages of batch at indexes and files a verdict for each in errs, except for those that it returns
// as open, with the cause: the session is over then.
//
// It ends the connection when ctx ends or nothing moves for ConfirmTimeout: the client can wait neither for a write nor
// for a confirmation with a bound.
func (s *session) publish(
	ctx context.Context, batch []Publishing, indexes []int, errs []error,
) (open []int, cause error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	defer context.AfterFunc(ctx, s.conn.socket.abort)()
	patience := s.conn.cfg.ConfirmTimeout
	stuck := time.AfterFunc(patience, func() {
		err := fmt.Errorf("nothing confirmed for %v", patience)
		if why := s.conn.Blocked(); why != "" {
			err = fmt.Errorf("%w: RabbitMQ blocks publishers (%s)", err, why)
		}
		giveUp(err)
	})
	defer stuck.Stop()
	var waiting []*sent
	settle := func() {
		if i, ok := s.settle(waiting[0], errs); !ok {
			open = append(open, i)
		}
		waiting = waiting[1:]
		stuck.Reset(patience)
	}
	for n, i := range indexes {
		msg, err := toClient(&batch[i], s.conn.amqp.Config.FrameSize)
		if err != nil {
			errs[i] = err
			continue
		}
		for !s.slots.TryAcquire(1) {
			if len(waiting) == 0 { // those of others are confirmed, or the session ends
				_ = s.slots.Acquire(context.Background(), 1)
				break
			}
			settle()
		}
		m, err := s.send(i, &batch[i], msg)
		if err != nil {
			s.slots.Release(1)
			open = append(open, indexes[n:]...) // the client does not say how much of it the broker has
			break
		}
		waiting = append(waiting, m)
		stuck.Reset(patience)
	}
	for len(waiting) > 0 {
		settle()
	}
	if len(open) == 0 {
		return nil, nil
	}
	if err := context.Cause(ctx); err != nil {
		return open, err
	}
	return open, s.why()
}

func (s *session) send(i int, p *Publishing, msg amqp.Publishing) (*sent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drainReturns()
	confirm, err := s.ch.PublishWithDeferredConfirm(p.Exchange, p.Key, mandatory, !immediate, msg)
	if err != nil {
		return nil, err
	}
	m := &sent{index: i, confirm: confirm, route: route{p.Exchange, p.Key}, msg: msg}
	s.flight[confirm.DeliveryTag] = m
	return m, nil
}

// settle waits for one confirmation. The end of the channel resolves it too, as "not acked" though the broker may have
// the message.
func (s *session) settle(m *sent, errs []error) (index int, ok bool) {
	<-m.confirm.Done()
	s.mu.Lock()
	s.drainReturns() // a return precedes its confirmation, so it is in the channel by now
	unroutable := m.returned
	delete(s.flight, m.confirm.DeliveryTag)
	s.mu.Unlock()
	s.slots.Release(1)
	switch {
	case m.confirm.Acked() && unroutable:
		errs[m.index] = fmt.Errorf("publish to %s: %w", m.route, ErrUnroutable)
	case m.confirm.Acked():
		errs[m.index] = nil
	case s.ch.IsClosed():
		return m.index, false
	default:
		errs[m.index] = fmt.Errorf("publish to %s: %w", m.route, ErrNacked)
	}
	return m.index, true
}

func (s *session) drainReturns() {
	for len(s.returns) > 0 {
		if r, ok := <-s.returns; ok {
			s.flight.cameBack(&r)
		}
	}
}
