package rabbit

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Publishing is a message and where it goes. Through the default exchange (empty) Key is the name of a queue.
type Publishing struct {
	Exchange, Key string
	Message
}

// Publisher publishes with confirmations. It dials at the first Publish and again after every failure; it has a connection of
// its own, which the broker may block without stopping acks elsewhere. Safe for many goroutines, whose batches are pipelined.
type Publisher struct {
	cfg Config

	dialing chan struct{} // holds one token: who has it may dial

	mu       sync.Mutex // guards what is below
	shared   *session   // nil before the first Publish and after a failure
	inFlight int        // calls of Publish
	closed   bool
	idle     chan struct{} // closed when closed and nothing is in flight
}

// NewPublisher does not dial yet.
func NewPublisher(cfg Config) *Publisher {
	return &Publisher{cfg: cfg.withDefaults(), dialing: make(chan struct{}, 1), idle: make(chan struct{})}
}

// Publish sends all messages, persistent and mandatory, and waits for the broker's verdict on each. The errors are in the order of
// the batch: nil only for a message that the broker confirmed and routed to a queue; ErrUnroutable, ErrNacked, ErrUnconfirmed
// (unknown: publish it again), ErrUnsendable (never will be: see the text); any other error says why nothing was sent.
//
// While a message is unroutable, others to the same exchange and key that were under way at that moment may be reported so
// too, although they arrived: better twice than lost. Once ctx ends, or nothing moves for ConfirmTimeout, the connection is
// given up, since the client cannot be interrupted otherwise, and what is open is ErrUnconfirmed.
func (p *Publisher) Publish(ctx context.Context, batch []Publishing) []error {
	errs := make([]error, len(batch))
	if err := p.enter(); err != nil {
		fill(errs, all(len(batch)), err)
		return errs
	}
	defer p.leave()
	open, cause := p.publishShared(ctx, batch, errs)
	if isRefusal(cause) {
		// One message of some batch on this channel made the broker close it. Find out which, away from everybody else.
		p.isolate(ctx, batch, open, errs)
		return errs
	}
	fill(errs, open, unconfirmed(cause))
	return errs
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
	_, err := p.session(ctx)
	return err
}

// Close waits until no Publish is under way, or ctx ends, and closes the connection. Publish fails with ErrClosed from now on.
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
func (p *Publisher) publishShared(ctx context.Context, batch []Publishing, errs []error) (open []int, cause error) {
	s, err := p.session(ctx)
	if err != nil {
		fill(errs, all(len(batch)), fmt.Errorf("publish: %w", err))
		return nil, nil
	}
	open, cause = s.publish(ctx, batch, all(len(batch)), errs)
	if cause != nil {
		p.drop(s)
	}
	return open, cause
}

// session returns the living shared session or dials one; one goroutine dials, the others wait for it.
func (p *Publisher) session(ctx context.Context) (*session, error) {
	select {
	case p.dialing <- struct{}{}:
		defer func() { <-p.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p.mu.Lock()
	s := p.shared
	p.mu.Unlock()
	if s != nil && s.alive() {
		return s, nil
	}
	if s != nil {
		p.drop(s)
	}
	s, err := openSession(ctx, p.cfg)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.shared = s
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

// isolate publishes what a refusal left open, halving until every message that is refused stands alone on a connection of its own.
// Only then is it surely the one to blame.
func (p *Publisher) isolate(ctx context.Context, batch []Publishing, open []int, errs []error) {
	if len(open) == 0 {
		return
	}
	s, err := openSession(ctx, p.cfg)
	if err != nil {
		fill(errs, open, unconfirmed(err)) // the broker may have them from before
		return
	}
	open, cause := s.publish(ctx, batch, open, errs)
	_ = s.conn.Close() // what matters is confirmed, or open and reported
	switch guilty, rest := blame(batch, open, cause); {
	case len(guilty) > 0:
		for _, i := range guilty {
			errs[i] = refusal(batch[i], cause)
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
