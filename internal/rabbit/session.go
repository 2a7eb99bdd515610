package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// window is how many messages of a session may wait for their confirmation. The channel for returned messages has room
// for as many: the client's reader must never wait for it, as it drops a return after 5 s.
const window = 1000

// session is one publishing connection with its channel in confirm mode.
type session struct {
	conn     *Conn
	maxFrame int

	born    time.Time
	users   int  // who publish on it; guarded by Publisher.mu
	retired bool // closed by its last user; guarded by Publisher.mu

	slots chan struct{} // a token in it for each message that waits for its confirmation

	mu      sync.Mutex // guards what is below; held while sending, since the client's channels are for one goroutine
	ch      *amqp.Channel
	closes  <-chan *amqp.Error
	returns <-chan amqp.Return
	flight  flight
	end     error // why the channel closed
}

type route struct{ exchange, key string }

func openSession(ctx context.Context, cfg Config) (*session, error) {
	conn, err := Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, born: time.Now(), maxFrame: conn.amqp.Config.FrameSize, slots: make(chan struct{}, window),
		flight: make(flight, window)}
	err = conn.ask(ctx, "open a publishing channel", func() error {
		ch, err := conn.amqp.Channel()
		if err != nil {
			return err
		}
		s.ch = ch
		s.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
		s.returns = ch.NotifyReturn(make(chan amqp.Return, window))
		return ch.Confirm(!noWait)
	})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *session) alive() bool { return !s.ch.IsClosed() }

// publish sends the messages of batch at indexes and files a verdict for each in errs, except for those that it returns
// as open, with the cause: the session is over then.
func (s *session) publish(
	ctx context.Context, batch []Publishing, indexes []int, errs []error,
) (open []int, cause error) {
	w := s.watch(ctx)
	defer w.stop()
	var waiting []*sent
	settle := func() {
		if i, ok := s.settle(waiting[0], errs); !ok {
			open = append(open, i)
		}
		waiting = waiting[1:]
		w.moved()
	}
	for n, i := range indexes {
		msg, err := toClient(&batch[i], s.maxFrame)
		if err != nil {
			errs[i] = err
			continue
		}
		for !s.takeSlot(len(waiting) == 0) {
			settle()
		}
		m, err := s.send(i, &batch[i], msg)
		if err != nil {
			<-s.slots
			open = append(open, indexes[n:]...) // the client does not say how much of it the broker has
			break
		}
		waiting = append(waiting, m)
		w.moved()
	}
	for len(waiting) > 0 {
		settle()
	}
	if len(open) == 0 {
		return nil, nil
	}
	if err := w.gaveUp(); err != nil {
		return open, err
	}
	return open, s.why()
}

// takeSlot takes the right to one more unconfirmed message. With wait it waits for other goroutines' messages to be
// confirmed, which the end of the session does as well.
func (s *session) takeSlot(wait bool) bool {
	if wait {
		s.slots <- struct{}{}
		return true
	}
	select {
	case s.slots <- struct{}{}:
		return true
	default:
		return false
	}
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
	<-s.slots
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
	for {
		select {
		case r, ok := <-s.returns:
			if !ok {
				return
			}
			s.flight.cameBack(&r)
		default:
			return
		}
	}
}

// why says what closed the channel.
func (s *session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.end = ErrClosed
		if e, ok := <-s.closes; ok { // resolved confirmations mean that the client has closed it
			s.end = translate(e)
		}
	}
	return s.end
}

func (r route) String() string {
	if r.exchange == "" {
		return fmt.Sprintf("queue %q", r.key)
	}
	return fmt.Sprintf("exchange %q with routing key %q", r.exchange, r.key)
}

// watchdog ends the connection when ctx ends or nothing moves for ConfirmTimeout: the client can wait neither for a
// write nor for a confirmation with a bound.
type watchdog struct {
	s      *session
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	unbind func() bool
}

func (s *session) watch(ctx context.Context) *watchdog {
	w := &watchdog{s: s}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.unbind = context.AfterFunc(w.ctx, s.conn.socket.abort)
	w.timer = time.AfterFunc(s.conn.cfg.ConfirmTimeout, func() {
		err := fmt.Errorf("nothing confirmed for %v", s.conn.cfg.ConfirmTimeout)
		if why := s.conn.Blocked(); why != "" {
			err = fmt.Errorf("%w: RabbitMQ blocks publishers (%s)", err, why)
		}
		w.cancel(err)
	})
	return w
}

func (w *watchdog) moved() { w.timer.Reset(w.s.conn.cfg.ConfirmTimeout) }

// gaveUp says why the watchdog ended the connection, or nil if it did not.
func (w *watchdog) gaveUp() error { return context.Cause(w.ctx) }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.unbind()
	w.cancel(nil)
}
