package shovel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/wait"
	"github.com/rollbackd/rollbackd/internal/wire"
)

const (
	// prefetch is how many messages may be in hand without a rate.
	prefetch = 1000
	// batch is how many are published together.
	batch = 500
	// memory bounds the bodies in hand, in bytes. One message that is larger comes through alone.
	memory = 64 << 20
	// idle is how long nothing comes before the broker is asked whether anything is left.
	idle = 300 * time.Millisecond
	// lookEvery is the pause between two looks at how much waits, for the progress.
	lookEvery = time.Second
	// The pauses before something is tried again: a full queue, a lost connection. They double from one to the other.
	firstPause, longestPause = 100 * time.Millisecond, 5 * time.Second
	// maxStays is how many of the messages that stay are described.
	maxStays = 1000
	// MinRate is the lowest rate, in messages per second: what is taken and waits for its turn is in nobody else's reach,
	// and RabbitMQ gives a consumer half an hour.
	MinRate = 0.01
)

// ErrSource says that it is about the queue that messages are taken from.
var ErrSource = errors.New("the queue to take messages from")

// ErrStuck says that the queue has messages and RabbitMQ delivers none.
var ErrStuck = errors.New("RabbitMQ delivers none of its messages")

// errIdle ends a wait for messages that nobody sends.
var errIdle = errors.New("no message came")

// Options say what to carry where.
type Options struct {
	Rabbit   rabbit.Config         // of both connections: one takes, the other publishes
	Topology rabbit.TopologyConfig // of the daemon, whose main queue the messages go to
	From     string                // the queue that they come from
	Rate     float64               // messages per second at most, from MinRate; 0: as many as can be
	Tag      string                // of messages that have neither a type nor a routing key; "": they stay without
	Follow   bool                  // go on when the queue is empty, until the context ends
	// Patience is how long RabbitMQ may deliver nothing although messages wait. 30s when zero.
	Patience time.Duration
	// Progress is told often how far the run has come; Say, what a person should know at once.
	Progress func(Progress)
	Say      func(string)
}

// Progress is how far a run has come.
type Progress struct {
	Moved   int    // so far
	Left    int    // which stay where they are
	Waiting int    // in the queue, at the last look; what others have in hand is not among them
	Why     string // nothing goes on at the moment; "" while it does
}

// Result is what a run has done.
type Result struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Moved int    `json:"moved"`
	Left  int    `json:"left"`            // how many stay because they cannot be carried
	Stays []Stay `json:"stays,omitempty"` // of them, the first thousand
}

// Stay is a message that cannot be carried.
type Stay struct {
	MessageID  string `json:"message_id,omitempty"`
	Exchange   string `json:"exchange"` // of this delivery, like its routing key
	RoutingKey string `json:"routing_key"`
	Bytes      int    `json:"bytes"` // of its body
	Why        string `json:"why"`
}

// check refuses what can only be a mistake.
func (o Options) check() error {
	switch {
	case o.From == o.Topology.Queue:
		return fmt.Errorf("queue %q is the main queue itself", o.From)
	case slices.Contains(o.Topology.Queues(), o.From):
		return fmt.Errorf("queue %q is one of rollbackd's own: what is in it goes to the main queue by itself, or by a "+
			"replay", o.From)
	}
	return nil
}

// mover is one run. The file has the steps in the order in which a message meets them.
type mover struct {
	o      Options
	to     *rabbit.Publisher
	pace   pace
	result Result
	known  map[Stay]bool // what was said of messages that stay; a new session meets them again

	lost   bool // the connection, and that was said
	met    bool // there was a session: servers, queues and rights are such that it can work
	looked time.Time
	at     Progress

	// Of the session:
	conn *rabbit.Conn
	sub  *rabbit.Subscription
	left []uint64 // deliveries that stay, unacked until the session ends so that they do not come again
}

// Run carries messages until the queue is empty, or with Follow until ctx ends. Wherever it ends, what it had in hand
// is either in the main queue and acked, or back in its queue. The error is the cause of ctx when that ended it, and
// otherwise why it could not go on. A connection that is lost once everything worked is made again.
func Run(ctx context.Context, o Options) (Result, error) {
	m := &mover{o: o, known: map[Stay]bool{}, result: Result{From: o.From, To: o.Topology.Queue}}
	if err := o.check(); err != nil {
		return m.result, err
	}
	m.o.Patience = cmp.Or(m.o.Patience, 30*time.Second)
	m.pace, m.to = pace{rate: o.Rate}, rabbit.NewPublisher(o.Rabbit)
	err := m.run(ctx)
	return m.result, errors.Join(err, m.to.Close(context.WithoutCancel(ctx)))
}

// run makes session after session.
func (m *mover) run(ctx context.Context) error {
	for pause := firstPause; ; {
		before := m.result.Moved
		err := m.session(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !m.met || final(err):
			return err
		}
		if m.result.Moved > before {
			pause = firstPause
		}
		if !m.lost {
			m.lost = true
			m.o.Say(fmt.Sprintf("the connection is lost and will be made again: %v", err))
		}
		m.wait("no connection to RabbitMQ")
		if err := wait.For(ctx, jitter(pause)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
	}
}

// refusal is the code of what RabbitMQ refused; 0: it did not.
func refusal(err error) int {
	if b, told := errors.AsType[*rabbit.BrokerError](err); told {
		return int(b.Code)
	}
	return 0
}

const notFound, accessRefused, resourceLocked = 404, 403, 405

// final reports whether waiting for a moment would not help: what RabbitMQ refuses it goes on refusing.
func final(err error) bool {
	return slices.Contains([]int{notFound, accessRefused, resourceLocked}, refusal(err)) || errors.Is(err, ErrStuck) ||
		errors.Is(err, rabbit.ErrUnroutable) || errors.Is(err, rabbit.ErrForbidden)
}

// session carries messages over one connection.
func (m *mover) session(ctx context.Context) (err error) {
	cfg := m.o.Rabbit
	cfg.Budget = rabbit.NewBudget(memory, 1)
	if m.conn, err = rabbit.Dial(ctx, cfg); err != nil {
		return err
	}
	defer func() { _ = m.conn.Close() }() // all that matters was confirmed or acked before
	if _, _, err := m.conn.Depth(ctx, m.o.Topology.Queue); err != nil {
		return fmt.Errorf("the main queue: %w", err)
	}
	if _, err := m.look(ctx); err != nil {
		return err
	}
	m.sub, err = m.conn.Consume(ctx, m.o.From, rabbit.ConsumerTag(0), m.pace.prefetch())
	if code := refusal(err); code == accessRefused || code == resourceLocked {
		return fmt.Errorf("%w: %w; this user may not read it, or somebody else consumes it exclusively", ErrSource, err)
	} else if err != nil {
		return err
	}
	m.met, m.lost, m.left, m.result.Left, m.at.Why = true, false, nil, 0, ""
	defer m.leave(context.WithoutCancel(ctx))
	return m.through(ctx)
}

// look asks how many messages wait.
func (m *mover) look(ctx context.Context) (ready int, err error) {
	ready, _, err = m.conn.Depth(ctx, m.o.From)
	if refusal(err) != 0 {
		return 0, fmt.Errorf("%w: %w", ErrSource, err)
	}
	m.at.Waiting, m.looked = ready, time.Now()
	return ready, err
}

// through takes messages until there are none.
func (m *mover) through(ctx context.Context) error {
	var buf []rabbit.Delivery
	came, warned, empty := time.Now(), false, 0
	for {
		n, err := m.pace.turn(ctx, m.sub.Rest)
		if err != nil {
			return err
		}
		soon, cancel := context.WithTimeoutCause(ctx, idle, errIdle)
		buf, err = m.sub.Collect(soon, n, 2*time.Millisecond, buf)
		cancel()
		switch {
		case len(buf) > 0:
			if err := m.carry(ctx, buf); err != nil {
				return err
			}
			m.pace.took(len(buf))
			came, warned, empty = time.Now(), false, 0
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errIdle):
			return err
		}
		if len(buf) > 0 && time.Since(m.looked) < lookEvery {
			continue
		}
		ready, err := m.look(ctx)
		m.report()
		switch {
		case err != nil:
			return err
		case len(buf) > 0:
		case ready == 0:
			// Twice, because what this run has given back for want of memory may not be there again yet.
			if empty++; empty > 1 && !m.o.Follow {
				return nil
			}
			came, warned = time.Now(), false
		case time.Since(came) > m.o.Patience:
			err := fmt.Errorf("queue %q has %d messages and %w for %v: another consumer may be its single active one, or "+
				"have a higher priority", m.o.From, ready, ErrStuck, m.o.Patience)
			if !m.o.Follow {
				return err
			}
			if !warned {
				m.o.Say(err.Error())
			}
			warned = true
		}
	}
}

// carry publishes what can be carried and acks what is confirmed. What a full queue refuses is tried until it is taken
// or ctx ends; an error leaves the rest unacked.
func (m *mover) carry(ctx context.Context, came []rabbit.Delivery) error {
	var open []rabbit.Publishing
	var from []rabbit.Delivery
	for _, d := range came {
		msg, err := wire.Carry(d, m.o.From)
		if err != nil {
			m.stay(&d, err)
			continue
		}
		if msg.Type == "" { // there is no routing key either
			msg.Type = m.o.Tag
		}
		open, from = append(open, rabbit.Publishing{Key: m.o.Topology.Queue, Message: msg}), append(from, d)
	}
	for pause := firstPause; len(open) > 0; {
		// What is under way is waited for, whoever has pressed Ctrl-C: the publisher bounds how long that may take.
		errs := m.to.Publish(context.WithoutCancel(ctx), open)
		var again []rabbit.Publishing
		var whose []rabbit.Delivery
		var refused error
		for i, err := range errs {
			switch {
			case err == nil:
				if err := m.sub.Ack(from[i].Tag, false); err != nil {
					return err
				}
				m.result.Moved++
			case errors.Is(err, rabbit.ErrUnsendable):
				m.stay(&from[i], err)
			case errors.Is(err, rabbit.ErrUnroutable), errors.Is(err, rabbit.ErrForbidden):
				return err
			default:
				again, whose, refused = append(again, open[i]), append(whose, from[i]), err
			}
		}
		if len(again) < len(open) {
			pause = firstPause
		}
		open, from = again, whose
		m.report()
		if len(open) == 0 {
			break
		}
		if m.at.Why == "" {
			m.o.Say(fmt.Sprintf("queue %q takes nothing, waiting: %v", m.o.Topology.Queue, refused))
		}
		m.wait("the main queue takes nothing")
		if err := m.sub.Rest(ctx, jitter(pause)); err != nil {
			return err
		}
		pause = min(2*pause, longestPause)
		if errors.Is(refused, rabbit.ErrNacked) {
			m.to.Renew()
		}
	}
	m.at.Why = ""
	return nil
}

// stay leaves a message where it is: unacked for now, so that it does not come again, and without its body in memory.
func (m *mover) stay(d *rabbit.Delivery, why error) {
	m.left = append(m.left, d.Tag)
	m.sub.Unload(d.Tag)
	m.result.Left++
	s := Stay{
		MessageID: d.MessageID, Exchange: d.Exchange, RoutingKey: d.RoutingKey, Bytes: len(d.Body), Why: why.Error(),
	}
	if len(m.known) < maxStays && !m.known[s] {
		m.known[s] = true
		m.result.Stays = append(m.result.Stays, s)
		m.o.Say(fmt.Sprintf("a message stays in queue %q (message_id %q, routing key %q, %d bytes): %s", m.o.From,
			s.MessageID, s.RoutingKey, s.Bytes, s.Why))
	}
}

// leave gives back what is not acked. Given back by name it costs a message nothing on a quorum queue of RabbitMQ 4,
// where closing the channel costs it one of its delivery limit. The answer to the cancel comes after the acks that a
// quorum queue has taken, so that none is forgotten with the channel.
func (m *mover) leave(ctx context.Context) {
	_ = m.sub.Cancel(ctx) // whatever fails here fails with the connection, and all unacked goes back with it
	for {
		soon, cancel := context.WithTimeout(ctx, idle)
		got, err := m.sub.Collect(soon, batch, 0, nil)
		cancel()
		if err != nil {
			break
		}
		for _, d := range got {
			m.left = append(m.left, d.Tag)
		}
	}
	for _, tag := range m.left {
		_ = m.sub.Requeue(tag, false)
	}
	_ = m.sub.Close()
}

func (m *mover) wait(why string) {
	m.at.Why = why
	m.report()
}

func (m *mover) report() {
	m.at.Moved, m.at.Left = m.result.Moved, m.result.Left
	m.o.Progress(m.at)
}

// jitter is d, give or take a quarter, so that several runs do not come together.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2)
}
