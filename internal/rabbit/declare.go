package rabbit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
)

// ArgumentError says that a queue or exchange exists with another argument than rollbackd needs.
type ArgumentError struct {
	What string // for example: queue "stock.rollback"
	Arg  string // for example: x-delivery-limit; "" if the broker did not say
	Text string // the broker's words
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%s exists with another %s than rollbackd needs (%s); "+
		"delete it when it is empty and let rollbackd make it anew, or choose another name", e.What,
		cmp.Or(e.Arg, "an argument"), e.Text)
}

// Declare makes exchange, queues and bindings, or checks that they are what rollbackd needs; running it again changes
// nothing. Where the user may not configure (403) it only checks that the thing exists and says in the warnings that
// its arguments are unchecked. Policies cannot be seen over AMQP. An existing thing with other arguments gives an
// ArgumentError.
func Declare(ctx context.Context, c *Conn, t TopologyConfig) (warnings []string, err error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	warnings, err = VersionWarnings(c.ServerVersion())
	if err != nil {
		return warnings, err
	}
	for _, s := range t.steps() {
		var err error
		if s.declare != nil {
			err = s.assert(ctx, c)
		}
		forbidden := hasCode(err, codeRefused)
		if s.declare == nil || forbidden && s.check != nil {
			_, err = s.look(ctx, c)
		}
		switch {
		case s.declare == nil && hasCode(err, codeNotFound):
			return warnings, fmt.Errorf("%s %w", s.what, ErrNoMain)
		case forbidden && s.check == nil:
			warnings = append(warnings, "this user may not make the "+s.what+": unchecked")
		case forbidden && err == nil:
			warnings = append(warnings, s.what+" exists, but this user may not declare it: its arguments are unchecked")
		case forbidden:
			return warnings, fmt.Errorf("not allowed to declare it: %w", err)
		case err != nil:
			return warnings, err
		}
	}
	return warnings, nil
}

// Redeclare is [Declare] for a connection made anew in a process that has declared everything before: it looks whether
// all is still there, and declares only when something is missing.
//
// In a cluster, RabbitMQ 3.x answers a queue.bind only when every node agrees, even if the binding exists. While one
// node is frozen, and until the others take it for gone a minute later, that is never; everything else works, the
// queues with a leader on another node included. A consumer that insisted on its binding would stand still in a cluster
// that serves it.
func Redeclare(ctx context.Context, c *Conn, t TopologyConfig) (warnings []string, err error) {
	missing, err := Missing(ctx, c, t)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	return Declare(ctx, c, t)
}

// Missing lists the queues and the exchange that do not exist, each as `queue "NAME"` or `exchange "NAME"`; `rollbackd
// migrate` makes them.
func Missing(ctx context.Context, c *Conn, t TopologyConfig) ([]string, error) {
	var missing []string
	for _, s := range t.things() {
		_, err := s.look(ctx, c)
		if hasCode(err, codeNotFound) {
			missing = append(missing, s.what)
		} else if err != nil {
			return missing, err
		}
	}
	return missing, nil
}

// Inspection is what Inspect found of one queue or exchange.
type Inspection struct {
	What             string // for example: queue "stock.rollback"
	Queue            string // its name, "" for an exchange
	Ready, Consumers int    // of a queue
	Missing          bool
	Taken            bool  // as it is: its arguments were not compared
	Unchecked        bool  // it exists, but this user may not declare it, so its arguments cannot be compared
	Err              error // an ArgumentError, or why it could not be looked at
}

// Inspect compares exchange and queues with what rollbackd needs, and makes nothing: only what exists is declared,
// which compares its arguments. AMQP shows no bindings and no policies. The error is that of the connection.
func Inspect(ctx context.Context, c *Conn, t TopologyConfig) (found []Inspection, _ error) {
	for _, s := range t.things() {
		q, err := s.look(ctx, c)
		one := Inspection{What: s.what, Queue: q.Name, Ready: q.Messages, Consumers: q.Consumers, Taken: s.declare == nil}
		if err == nil && !one.Taken {
			err = s.assert(ctx, c)
		}
		switch {
		case hasCode(err, codeNotFound):
			one.Missing = true
		case hasCode(err, codeRefused):
			one.Unchecked = true
		case err != nil && c.Err() != nil:
			return found, err
		default:
			one.Err = err
		}
		found = append(found, one)
	}
	return found, nil
}

// step is one thing on the broker. check is nil for bindings, which AMQP cannot look up; declare is nil for what is
// taken as it is.
type step struct {
	what    string
	declare func(*amqp.Channel) error
	check   func(*amqp.Channel) (amqp.Queue, error)
}

// steps are in such an order that everything a step refers to exists: the things, then their bindings.
func (t TopologyConfig) steps() []step {
	all := t.things()
	if t.TakeMain {
		return all
	}
	for _, key := range t.RoutingKeys {
		what := fmt.Sprintf("binding of queue %q to exchange %q by %q", t.Queue, t.Exchange, key)
		all = append(all, step{what, func(ch *amqp.Channel) error {
			return ch.QueueBind(t.Queue, key, t.Exchange, !noWait, nil)
		}, nil})
	}
	return all
}

// things are the exchange and the queues.
func (t TopologyConfig) things() (all []step) {
	const internal = true
	if !t.TakeMain {
		all = append(all, step{fmt.Sprintf("exchange %q", t.Exchange), func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(t.Exchange, amqp.ExchangeTopic, durable, !autoDelete, !internal, !noWait, nil)
		}, func(ch *amqp.Channel) (none amqp.Queue, err error) {
			return none, ch.ExchangeDeclarePassive(t.Exchange, amqp.ExchangeTopic, durable, !autoDelete, !internal, !noWait, nil)
		}})
	}
	for _, q := range t.queues() {
		one := step{what: fmt.Sprintf("queue %q", q.name), check: countsOf(q.name)}
		if q.name != t.Queue || !t.TakeMain {
			one.declare = func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(q.name, durable, !autoDelete, !exclusive, !noWait, q.args)
				return err
			}
		}
		all = append(all, one)
	}
	return all
}

// countsOf looks at a queue that must exist.
func countsOf(queue string) func(*amqp.Channel) (amqp.Queue, error) {
	return func(ch *amqp.Channel) (amqp.Queue, error) {
		q, err := ch.QueueDeclarePassive(queue, durable, !autoDelete, !exclusive, !noWait, nil)
		q.Name = queue
		return q, err
	}
}

func (s step) look(ctx context.Context, c *Conn) (q amqp.Queue, err error) {
	err = c.onChannel(ctx, "check "+s.what, func(ch *amqp.Channel) (err error) {
		q, err = s.check(ch)
		return err
	})
	return q, err
}

var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)'`)

// assert declares what is not there, and compares what is.
func (s step) assert(ctx context.Context, c *Conn) error {
	err := c.onChannel(ctx, "declare "+s.what, s.declare)
	b, ok := errors.AsType[*BrokerError](err)
	if !ok || b.Code != codePrecondition {
		return err
	}
	e := &ArgumentError{What: s.what, Text: b.Text}
	if m := inequivalent.FindStringSubmatch(b.Text); m != nil {
		e.Arg = m[1]
	}
	return e
}

// VersionWarnings says what a broker of this version cannot do; the error, that it cannot keep rollbackd's promise.
func VersionWarnings(version string) ([]string, error) {
	switch n := versionNumber(version); {
	case n == 0:
		return []string{fmt.Sprintf("the broker's version %q is unknown; RabbitMQ 3.10 or later is needed", version)}, nil
	case n < 3_010:
		return nil, fmt.Errorf("RabbitMQ %s dead-letters at most once; 3.10 or later is needed", version)
	case n < 3_012:
		return []string{fmt.Sprintf("RabbitMQ %s dead-letters at least once only with the feature flag stream_queue; check "+
			"`rabbitmqctl list_feature_flags`", version)}, nil
	}
	return nil, nil
}

// countsAcquired: from 4.3, a broker writes x-acquired-count at each redelivery, and x-delivery-count only when a
// delivery failed.
func countsAcquired(version string) bool { return versionNumber(version) >= 4_003 }

// versionNumber is 3_010 for 3.10.8, and 0 for what is no version.
func versionNumber(version string) int {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return 0
	}
	return 1000*major + minor
}

// MayRead says whether this user may consume from a queue, without taking a message when the queue is empty.
func (c *Conn) MayRead(ctx context.Context, queue string) error {
	sub, err := c.Consume(ctx, queue, ConsumerTag(0)+"/doctor", 1)
	if err != nil {
		return err
	}
	return errors.Join(sub.Cancel(ctx), sub.Close())
}

// MayBind says whether this user may bind the queue to the exchange: it takes away a binding that nobody made, which
// asks for the same rights and changes nothing.
func (c *Conn) MayBind(ctx context.Context, queue, exchange string) error {
	return c.onChannel(ctx, "unbind what is not bound", func(ch *amqp.Channel) error {
		return ch.QueueUnbind(queue, "rollbackd.doctor."+uuid.NewString(), exchange, nil)
	})
}

// blocksWithin is how long the broker may take to answer behind a message that nobody gets.
const blocksWithin = 2 * time.Second

// Blocks says why the broker takes nothing of those who publish ("low on disk"), "" when it does. Only who publishes is
// told, so it publishes a message to no queue, and asks for something behind it. Once blocked, the connection is of no
// use for anything else.
func (c *Conn) Blocks(ctx context.Context) (why string, err error) {
	ctx, cancel := context.WithTimeout(ctx, blocksWithin)
	defer cancel()
	err = c.onChannel(ctx, "ask whether publishers are blocked", func(ch *amqp.Channel) error {
		key := "rollbackd.watch." + uuid.NewString()
		if err := ch.PublishWithContext(ctx, "", key, !mandatory, !immediate, amqp.Publishing{}); err != nil {
			return err
		}
		return ch.Qos(1, 0, false)
	})
	if why := c.Blocked(); why != "" {
		return why, nil
	}
	return "", err
}

// MayPublish says whether this user may publish to the exchange. The message that it tries expires at no time that
// can be read: the broker refuses it after it has looked at the right, and before it looks for queues.
func (c *Conn) MayPublish(ctx context.Context, exchange string) error {
	err := c.onChannel(ctx, "publish what cannot be taken", func(ch *amqp.Channel) error {
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		const mandatory, immediate = true, true
		key, m := "rollbackd.doctor."+uuid.NewString(), amqp.Publishing{Expiration: "never"}
		if err := ch.PublishWithContext(ctx, exchange, key, mandatory, !immediate, m); err != nil {
			return err
		}
		if e, ok := <-closed; ok {
			return e
		}
		return amqp.ErrClosed
	})
	if hasCode(err, codePrecondition) {
		return nil
	}
	return err
}
