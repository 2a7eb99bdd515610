package rabbit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
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

	dialing chan struct{} // holds one token: who has it may dial

	mu       sync.Mutex // guards what is below
	shared   *session   // nil before the first Publish and after a failure
	inFlight int        // calls of Publish
	tooLarge int        // the broker closed a channel over bodies larger than this; 0: none is known to be
	closed   bool
	idle     chan struct{} // closed when closed and nothing is in flight
}

// NewPublisher does not dial yet.
func NewPublisher(cfg Config) *Publisher {
	return &Publisher{cfg: cfg.withDefaults(), dialing: make(chan struct{}, 1), idle: make(chan struct{})}
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
	errs := make([]error, len(batch))
	if err := p.enter(); err != nil {
		fill(errs, all(len(batch)), err)
		return errs
	}
	defer p.leave()
	together, apart := p.sortOut(batch)
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

// sortOut says which of batch are published over the shared channel, and which are larger than what closed it before:
// each time they close it the broker may have others of that moment or not, and they must be published again.
func (p *Publisher) sortOut(batch []Publishing) (together, apart []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range batch {
		if p.tooLarge > 0 && len(batch[i].Body) > p.tooLarge {
			apart = append(apart, i)
		} else {
			together = append(together, i)
		}
	}
	return together, apart
}

// learn takes in how a message ended that was published apart from others.
func (p *Publisher) learn(body int, err error) {
	limit, told := sizeLimit(err)
	p.mu.Lock()
	raised := err == nil && p.tooLarge > 0 && body > p.tooLarge
	switch {
	case told:
		p.tooLarge = limit
	case raised:
		p.tooLarge = 0
	}
	p.mu.Unlock()
	if raised {
		p.retire(0) // a channel keeps the limit that it has begun with
	}
}

// Blocked says why the broker has stopped reading what is published ("low on memory"), or "" if it has not.
func (p *Publisher) Blocked() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shared == nil {
		return ""
	}
	return p.shared.conn.Blocked()
}

// Ping makes sure that there is a live connection, dialling if need be.
func (p *Publisher) Ping(ctx context.Context) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	s, err := p.session(ctx)
	if err == nil {
		p.done(s)
	}
	return err
}

// renewable is how long a connection is left alone before Renew ends it, so that many callers do not dial all the time.
const renewable = time.Second

// Renew makes the next Publish use a new connection; what is under way on the present one ends there. RabbitMQ 3.10
// tells a channel on which a full queue has refused something that there is room again when messages leave the queue,
// but not when its limit is lifted: such a channel is refused for ever.
func (p *Publisher) Renew() {
	p.retire(renewable)
}

// retire ends the shared session when its last user is done with it, if it is older than that.
func (p *Publisher) retire(older time.Duration) {
	p.mu.Lock()
	s := p.shared
	if s == nil || time.Since(s.born) < older {
		p.mu.Unlock()
		return
	}
	p.shared, s.retired = nil, true
	idle := s.users == 0
	p.mu.Unlock()
	if idle {
		_ = s.conn.Close() // nothing was under way
	}
}

// done ends one use of a session, and the session if it was retired and this was its last.
func (p *Publisher) done(s *session) {
	p.mu.Lock()
	s.users--
	over := s.retired && s.users == 0
	p.mu.Unlock()
	if over {
		_ = s.conn.Close() // what it had to do is confirmed, or was reported
	}
}

// Close waits until no Publish is under way, or ctx ends, and closes the connection. Publish fails with ErrClosed from
// now on.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.inFlight == 0 {
			close(p.idle)
		}
	}
	s := p.shared
	p.mu.Unlock()
	var late error
	select {
	case <-p.idle:
	case <-ctx.Done():
		late = fmt.Errorf("close publisher: %w", context.Cause(ctx))
		if s != nil {
			s.conn.socket.abort() // ends every Publish on it
		}
	}
	p.mu.Lock()
	s, p.shared = p.shared, nil
	p.mu.Unlock()
	if s == nil {
		return late
	}
	return errors.Join(late, s.conn.Close())
}

func (p *Publisher) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return fmt.Errorf("publish: %w", ErrClosed)
	}
	p.inFlight++
	return nil
}

func (p *Publisher) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	if p.closed && p.inFlight == 0 {
		close(p.idle)
	}
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
	defer p.done(s)
	open, cause = s.publish(ctx, batch, indexes, errs)
	if cause != nil {
		p.drop(s)
	}
	return open, cause
}

// session returns the living shared session or dials one, in use until done; one goroutine dials, the others wait for
// it.
func (p *Publisher) session(ctx context.Context) (*session, error) {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	s := p.shared
	if s != nil && s.alive() {
		s.users++
		p.mu.Unlock()
		return s, nil
	}
	p.mu.Unlock()
	if s != nil {
		p.drop(s)
	}
	s, err := openSession(ctx, p.cfg)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.shared = s
	s.users++
	p.mu.Unlock()
	return s, nil
}

// drop closes a session that has failed, so that the next Publish dials anew.
func (p *Publisher) drop(s *session) {
	p.mu.Lock()
	if p.shared == s {
		p.shared = nil
	}
	p.mu.Unlock()
	_ = s.conn.Close() // it is broken already; why was reported with the messages
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
	if cause == nil {
		cause = ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnconfirmed, cause)
}

func all(n int) []int {
	indexes := make([]int, n)
	for i := range indexes {
		indexes[i] = i
	}
	return indexes
}

func fill(errs []error, indexes []int, err error) {
	for _, i := range indexes {
		errs[i] = err
	}
}
