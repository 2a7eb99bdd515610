package deadletter

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
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
	if err := errors.Join(wrongIf(o.Records == nil, "no consumer log"),
		wrongIf(o.Group == "" || o.Queue == "", "no group, or no queue"),
		wrongIf(o.Retention < 0, "retention %v is negative", o.Retention),
		wrongIf(o.MaxReplays < 0, "%d replays at most", o.MaxReplays)); err != nil {
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

// ReplayOptions say how to replay.
type ReplayOptions struct {
	// By is the person or process; it stands in the story of each row.
	By string
	// Force also takes letters without a row that are older than the log's retention, and those whose key another body had
	// whose row is gone. Each of them may have had its effect, which then happens again. And it takes parked letters.
	Force bool
	// Discarded also takes letters whose identity a person has discarded.
	Discarded bool
	// DryRun changes nothing and counts what would be.
	DryRun bool

	// Rate is how many letters are replayed per second at most; 0: as many as can be.
	Rate float64
	// Window is how many replayed letters may wait for the daemon at a time, 0 to MaxWindow: the run looks at their rows
	// and goes on when they are done or have failed, and in the end it waits for the last. 0: none is watched, full speed.
	Window int
	// MaxFailures ends the run with ErrTooManyFailures when so many letters of it have failed again, or are dead again. It
	// wants a Window, which bounds how many more may fail meanwhile. 0: they are only counted.
	MaxFailures int

	// Progress, if set, is called after every window of letters and while the run waits, by the goroutine that called
	// Replay.
	Progress func(Progress)
}

// MaxWindow bounds ReplayOptions.Window.
const MaxWindow = 10_000

// DiscardOptions say how to discard.
type DiscardOptions struct {
	By, Why  string // who, and why: both stand in the row
	DryRun   bool
	Progress func(Progress)
}

// Progress is how far a run has come.
type Progress struct {
	Seen, Found int // letters of the set; Found is 0 while a file is read
	Done        int // replayed or discarded
	Waiting     int // replayed and watched, without an outcome
	Failed      int // replayed and watched, failed again
	Applied     int // replayed and watched, their effect committed
	Left        int // chosen, and stay
	// Confirmed: of a [Set], everything that was ever reopened for it is published and confirmed by now.
	Confirmed bool
}

// What ends a replay that is watched.
var (
	ErrTooManyFailures = errors.New("too many of the replayed letters failed again")
	ErrNobodyConsumes  = errors.New("nobody consumes the main queue")
)

const (
	// window is how many letters go through the steps together: half of what a channel holds, so that the next ones come
	// meanwhile.
	window = 500
	// windowTimeout bounds what some letters do after the run was asked to stop: those in hand are finished, not dropped.
	windowTimeout = time.Minute
	// holdTime is how long a run holds letters that it does not take: after 30 minutes, RabbitMQ closes the channel of a
	// delivery without an ack. A run that takes longer gives them back and goes on with what is left of its set.
	holdTime = 10 * time.Minute
)

// Validate says what contradicts itself.
func (o ReplayOptions) Validate() error {
	return errors.Join(
		wrongIf(!(o.Rate >= 0) || math.IsInf(o.Rate, 0), "a rate of %v letters per second", o.Rate),
		wrongIf(o.Window < 0 || o.Window > MaxWindow, "a window of %d letters: want 0 to %d", o.Window, MaxWindow),
		wrongIf(o.MaxFailures < 0 || o.MaxFailures > 0 && o.Window == 0, "at most %d failures, with a window of %d letters",
			o.MaxFailures, o.Window))
}

// wrongIf is an error when something is so, and nil else.
func wrongIf(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// Result is what a run did. The names of its JSON form are stable.
type Result struct {
	DryRun bool `json:"dry_run"` // nothing was changed: the numbers say what would have been
	Found  int  `json:"found"`   // letters in the queue when the run began, or rows, or lines
	Seen   int  `json:"seen"`    // letters that were read
	Others int  `json:"others"`  // readers of the queue beside the run when it began: what they held it did not see

	Replayed  int `json:"replayed"`  // reopened, published, acked
	Mended    int `json:"mended"`    // of them, those with another body than their rows had
	Discarded int `json:"discarded"` // ended and acked
	Stale     int `json:"stale"`     // acked: their identity had ended already, or a copy of their message goes on
	// acked: further letters of a message that the run has just replayed or discarded
	Duplicates  int `json:"duplicates"`
	NotSelected int `json:"not_selected"` // stay: the filter or the limit left them out
	Later       int `json:"later"`        // stay: they came, or died again, after the run began
	Unseen      int `json:"unseen"`       // stay: the run ended before it came to them

	// What became of the replayed letters until the end of the run, as far as it watched them.
	Applied     int `json:"applied"`      // their effect is committed
	FailedAgain int `json:"failed_again"` // an attempt failed: they are tried again, or dead again
	DeadAgain   int `json:"dead_again"`   // of them, those that are dead letters again
	Unsettled   int `json:"unsettled"`    // nothing yet

	// Parked counts the letters of Left that were replayed as often as is allowed. They are marked in their rows.
	Parked int `json:"parked"`
	// NotFound are the keys of the filter that no letter has which fulfils all of it. Empty while letters are unseen.
	NotFound []string `json:"not_found"`

	ByReason map[dedup.Reason]int `json:"by_reason"` // of those replayed or discarded; "unknown" where nothing tells
	Left     []Left               `json:"left"`      // chosen, but they stay in the queue; of a [Set] the first

	// ByRows: the letters were found by their rows, see [Filter.ByRows]; those in the queue are stale.
	ByRows bool        `json:"-"`
	LeftBy map[Why]int `json:"-"` // all that were chosen and stay
	// Confirmed: of a [Set], everything that was ever reopened for it is published and confirmed.
	Confirmed bool `json:"-"`
}

// and is r with what another run did of the same kind, as far as compensation tells of it.
func (r Result) and(o Result) Result {
	if r.ByReason == nil {
		return o
	}
	r.Found, r.Seen, r.Replayed, r.Parked = r.Found+o.Found, r.Seen+o.Seen, r.Replayed+o.Replayed, r.Parked+o.Parked
	r.NotSelected, r.Left = r.NotSelected+o.NotSelected, append(r.Left, o.Left...)
	for reason, n := range o.ByReason {
		r.ByReason[reason] += n
	}
	return r
}

// LeftCount is how many letters were chosen and stay.
func (r Result) LeftCount() (all int) {
	for _, n := range r.LeftBy {
		all += n
	}
	return all
}

// Left is a letter that was chosen and stays in the queue.
type Left struct {
	Tag    string       `json:"tag"`
	Key    string       `json:"key"`
	Reason dedup.Reason `json:"reason"`
	Why    Why          `json:"why"`
	Error  string       `json:"error,omitempty"`
}

func (l Left) String() string {
	text := fmt.Sprintf("%s/%q: %s", l.Tag, l.Key, l.Why)
	if l.Error != "" {
		text += ": " + l.Error
	}
	return text
}
