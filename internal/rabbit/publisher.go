package rabbit

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Publishing is a message and where it goes. Through the default exchange (empty) Key is the name of a queue.
type Publishing struct {
	Exchange, Key string
	Message
}

// Publisher publishes with confirmations. It dials at the first Publish and again after every failure; it has a
// connection of its own, which the broker may block without stopping acks elsewhere. Safe for many goroutines, whose
// batches are pipelined.
type Publisher struct {
	cfg Config

	dialing chan struct{}  // holds one token: who has it may dial
	calls   sync.WaitGroup // of Publish
	ends    sync.WaitGroup // of sessions that are left

	tooLarge atomic.Int64 // the broker closed a channel over bodies larger than this; 0: none is known to be

	mu     sync.Mutex // guards what is below
	shared *session   // nil before the first Publish and after a failure
	closed bool
}

// NewPublisher does not dial yet.
func NewPublisher(cfg Config) *Publisher {
	return &Publisher{cfg: cfg.withDefaults(), dialing: make(chan struct{}, 1)}
}

// Publish sends all messages, persistent and mandatory, and waits for the broker's verdict on each. The errors are in
// the order of the batch: nil only for a message that the broker confirmed and routed to a queue; ErrUnroutable,
// ErrNacked, ErrUnconfirmed (unknown: publish it again), ErrUnsendable (never will be: see the text); any other error
// says why nothing was sent.
//
// One that is unroutable cannot be told from others under way that equal it in everything, nor, where the broker
// changes messages on their way in (an interceptor of RabbitMQ), from others to the same exchange and key: these may be
// reported so too, although they arrived, better twice than lost. Once ctx ends, or nothing moves for ConfirmTimeout,
// the connection is given up, since the client cannot be interrupted otherwise, and what is open is ErrUnconfirmed.
func (p *Publisher) Publish(ctx context.Context, batch []Publishing) []error {
	if err := p.enter(); err != nil {
		return slices.Repeat([]error{err}, len(batch))
	}
	defer p.calls.Done()
	errs := make([]error, len(batch))
	// What is larger than what closed the shared channel before goes apart: each time they close it the broker may have
	// others of that moment or not, and they must be published again.
	var together, apart []int
	limit := int(p.tooLarge.Load())
	for i := range batch {
		if limit > 0 && len(batch[i].Body) > limit {
			apart = append(apart, i)
		} else {
			together = append(together, i)
		}
	}
	if len(together) > 0 {
		open, cause := p.publishShared(ctx, batch, together, errs)
		if isRefusal(cause) {
			// One message of some batch on this channel made the broker close it. Find out which, away from everybody else.
			p.isolate(ctx, batch, open, errs)
		} else {
			fill(errs, open, unconfirmed(cause))
		}
	}
	p.isolate(ctx, batch, apart, errs)
	return errs
}

// Connect dials, unless a connection stands already.
func (p *Publisher) Connect(ctx context.Context) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.calls.Done()
	s, err := p.session(ctx)
	if err == nil {
		s.users.Done()
	}
	return err
}

// learn takes in how a message ended that was published apart from others.
func (p *Publisher) learn(body int, err error) {
	limit, told := sizeLimit(err)
	known := int(p.tooLarge.Load())
	switch {
	case told:
		p.tooLarge.Store(int64(limit))
	case err == nil && known > 0 && body > known:
		p.tooLarge.Store(0)
		p.leave(p.current()) // a channel keeps the limit that it has begun with
	}
}

// Blocked says why the broker has stopped reading what is published ("low on memory"), or "" if it has not.
func (p *Publisher) Blocked() string {
	if s := p.current(); s != nil {
		return s.conn.Blocked()
	}
	return ""
}

// renewable is how long a connection is left alone before Renew ends it, so that many callers do not dial all the time.
const renewable = time.Second

// Renew makes the next Publish use a new connection; what is under way on the present one ends there. RabbitMQ 3.10
// tells a channel on which a full queue has refused something that there is room again when messages leave the queue,
// but not when its limit is lifted: such a channel is refused for ever.
func (p *Publisher) Renew() {
	if s := p.current(); s != nil && time.Since(s.born) >= renewable {
		p.leave(s)
	}
}

// Close waits until no Publish is under way, or ctx ends, and closes the connection. Publish fails with ErrClosed from
// now on.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		p.calls.Wait()
		p.leave(p.current())
		p.ends.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		if s := p.current(); s != nil {
			s.conn.socket.abort() // ends every Publish on it
		}
		return fmt.Errorf("close publisher: %w", context.Cause(ctx))
	}
}

func (p *Publisher) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("publish: %w", ErrClosed)
	}
	p.calls.Add(1)
	return nil
}

// publishShared returns what is still open and why.
func (p *Publisher) publishShared(
	ctx context.Context, batch []Publishing, indexes []int, errs []error,
) (open []int, cause error) {
	s, err := p.session(ctx)
	if err != nil {
		fill(errs, indexes, fmt.Errorf("publish: %w", err))
		return nil, nil
	}
	defer s.users.Done()
	open, cause = s.publish(ctx, batch, indexes, errs)
	if cause != nil {
		p.leave(s)
	}
	return open, cause
}

// session returns the living shared session or dials one; who gets it is one of its users. One goroutine dials, the
// others wait for it.
func (p *Publisher) session(ctx context.Context) (s *session, err error) {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if s = p.current(); s != nil && s.ch.IsClosed() {
		p.leave(s)
	}
	p.mu.Lock()
	if s = p.shared; s == nil {
		p.mu.Unlock()
		if s, err = openSession(ctx, p.cfg); err != nil {
			return nil, err
		}
		p.mu.Lock()
		p.shared = s
	}
	s.users.Add(1)
	p.mu.Unlock()
	return s, nil
}

func (p *Publisher) current() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shared
}

// leave makes the next Publish dial anew. The connection is closed when its last user is done with it.
func (p *Publisher) leave(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == nil || p.shared != s {
		return
	}
	p.shared = nil
	p.ends.Go(func() {
		s.users.Wait()
		_ = s.conn.Close() // what it had to do is confirmed, or was reported
	})
}

// isolate publishes what a refusal left open, halving until every message that is refused stands alone on a connection
// of its own. Only then is it surely the one to blame.
func (p *Publisher) isolate(ctx context.Context, batch []Publishing, open []int, errs []error) {
	if len(open) == 0 {
		return
	}
	s, err := openSession(ctx, p.cfg)
	if err != nil {
		fill(errs, open, unconfirmed(err)) // the broker may have them from before
		return
	}
	tried := open
	open, cause := s.publish(ctx, batch, open, errs)
	_ = s.conn.Close() // what matters is confirmed, or open and reported
	for _, i := range tried {
		if errs[i] == nil && !slices.Contains(open, i) {
			p.learn(len(batch[i].Body), nil)
		}
	}
	switch guilty, rest := blame(batch, open, cause); {
	case len(guilty) > 0:
		for _, i := range guilty {
			errs[i] = refusal(batch[i], cause)
			p.learn(len(batch[i].Body), cause)
		}
		p.isolate(ctx, batch, rest, errs)
	case isRefusal(cause):
		half := len(open) / 2
		p.isolate(ctx, batch, open[:half], errs)
		p.isolate(ctx, batch, open[half:], errs)
	default:
		fill(errs, open, unconfirmed(cause))
	}
}

func unconfirmed(cause error) error {
	return fmt.Errorf("%w: %w", ErrUnconfirmed, cmp.Or(cause, ErrClosed))
}

func fill(errs []error, indexes []int, err error) {
	for _, i := range indexes {
		errs[i] = err
	}
}

// sent is a message that waits for its confirmation.
type sent struct {
	index    int
	confirm  *amqp.DeferredConfirmation
	route    route
	msg      amqp.Publishing
	returned bool // it came back, or may have; guarded by session.mu
}

// flight is the messages of a session that wait for their confirmations, by delivery tag.
type flight map[uint64]*sent

// cameBack finds out whose return this is. RabbitMQ names neither the delivery tag nor anything else of the publish,
// and no mark of ours shall stand in the message; but it sends the whole message back. So it is the one on this route
// that equals it. Of several equal ones each may be the one, and if none equals it, because the broker has changed it
// on its way, each on this route: better published twice than lost.
func (f flight) cameBack(r *amqp.Return) {
	to := route{r.Exchange, r.RoutingKey}
	var near, equal []*sent
	for _, m := range f {
		if m.route == to {
			near = append(near, m)
			if isReturnOf(r, &m.msg) {
				equal = append(equal, m)
			}
		}
	}
	if equal == nil {
		equal = near
	}
	for _, m := range equal {
		m.returned = true
	}
}

// isReturnOf reports whether what came back equals what was sent, in everything that [toClient] sends.
func isReturnOf(r *amqp.Return, p *amqp.Publishing) bool {
	return r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && r.ReplyTo == p.ReplyTo &&
		r.ContentType == p.ContentType && r.ContentEncoding == p.ContentEncoding &&
		r.Type == p.Type && r.AppId == p.AppId && r.Priority == p.Priority && r.Timestamp.Unix() == p.Timestamp.Unix() &&
		(len(r.Headers)+len(p.Headers) == 0 || reflect.DeepEqual(r.Headers, p.Headers)) && bytes.Equal(r.Body, p.Body)
}
