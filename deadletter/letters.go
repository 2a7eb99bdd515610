package deadletter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/certs"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wire"
)

// Options are the servers and names that [New] needs.
type Options struct {
	// Records is the consumer log. Its pool should allow ten connections.
	Records *dedup.Log
	// AMQPURLs are tried in turn. List needs none.
	AMQPURLs []string
	// CurrentAMQPURLs, if set, is asked before each connection in place of AMQPURLs: their passwords may have changed.
	CurrentAMQPURLs func() []string
	// AMQPTLS encrypts, for amqps URLs that name no certificates. Nil: what the URLs name.
	AMQPTLS *tls.Config
	// Warn, if set, is told why certificates that the URLs name cannot be read again; the former ones stay in use.
	Warn func(error)
	// Name is shown beside the connections on the management page.
	Name string
	// Group, Queue and KeyFrom are those of the daemon: they make a message's identity.
	Group, Queue, KeyFrom string
	// Retention is how long the log keeps success rows; 0: for ever.
	Retention time.Duration
	// MaxReplays parks a dead letter whose row was reopened so often: it stays until somebody forces it. 0: none is
	// parked.
	MaxReplays int

	certs *certs.Store // of Warn
}

// ErrBroker matches every error that came from RabbitMQ; the others came from the database, or from the caller's
// context.
var ErrBroker = errors.New("RabbitMQ cannot be used")

// brokerFault marks an error as ErrBroker without a word more.
type brokerFault struct{ error }

// Unwrap is the error itself.
func (e brokerFault) Unwrap() error { return e.error }

// Is reports that it came from RabbitMQ.
func (brokerFault) Is(target error) bool { return target == ErrBroker }

func brokerError(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return brokerFault{err}
}

// point names a durable step of a run.
type point string

// The points, in their order.
const (
	pointReopened  point = "reopened"  // the rows of a window are reopened, nothing is published
	pointPublished point = "published" // their messages are confirmed in the main queue, no letter is acked
	pointDiscarded point = "discarded" // the rows of a window say discarded, no letter is acked
	pointAcked     point = "acked"     // the acks of the window are sent
)

// Letters are the dead letters of one group and queue. Safe for many goroutines; each Replay or Discard opens its own
// connections.
type Letters struct {
	o       Options
	keyFrom []wire.KeySource

	// Tests change these.
	hold time.Duration     // how long a pass through the queue may hold letters
	hook func(point) error // called after each durable step; an error ends the run there as a kill would
}

// New checks o. It touches no server.
func New(o Options) (*Letters, error) {
	sources, err := wire.ParseKeySources(o.KeyFrom)
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	var errs []error
	if o.Records == nil {
		errs = append(errs, errors.New("no consumer log"))
	}
	if o.Group == "" || o.Queue == "" {
		errs = append(errs, errors.New("no group, or no queue"))
	}
	if o.Retention < 0 {
		errs = append(errs, fmt.Errorf("retention %v is negative", o.Retention))
	}
	if o.MaxReplays < 0 {
		errs = append(errs, fmt.Errorf("%d replays at most", o.MaxReplays))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	o.certs = &certs.Store{Warn: o.Warn}
	return &Letters{o: o, keyFrom: sources, hold: holdTime, hook: func(point) error { return nil }}, nil
}

// Queue is the dead-letter queue's name.
func (l *Letters) Queue() string { return rabbit.DeadQueue(l.o.Queue) }

// Queued counts the messages that are ready in the main queue, without those that a daemon has in hand.
func (l *Letters) Queued(ctx context.Context) (int, error) {
	q, err := l.dial(ctx)
	if err != nil {
		return 0, err
	}
	ready, _, err := q.conn.Depth(ctx, l.o.Queue)
	return ready, brokerError(errors.Join(err, q.conn.Close()))
}

// Remembers is how long after its end an identity is certainly remembered; 0: for ever.
func (l *Letters) Remembers(ctx context.Context) (time.Duration, error) { return l.o.remembers(ctx) }

// remembers is how long after its end an identity is certainly remembered; 0: for ever. A person may have deleted
// younger rows than the settings say, and the settings may have been others.
func (o Options) remembers(ctx context.Context) (time.Duration, error) {
	kept, err := o.Records.Remembers(ctx, o.Group)
	if err != nil || kept == 0 {
		return o.Retention, err
	}
	if o.Retention == 0 {
		return kept, nil
	}
	return min(o.Retention, kept), nil
}

func (o Options) amqp() rabbit.Config {
	return rabbit.Config{
		URLs: o.AMQPURLs, Current: o.CurrentAMQPURLs, Name: o.Name, TLS: o.AMQPTLS, Certs: o.certs,
	}
}
