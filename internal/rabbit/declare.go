package rabbit

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ArgumentError says that a queue or exchange exists with another argument than rollbackd needs.
type ArgumentError struct {
	What string // for example: queue "stock.rollback"
	Arg  string // for example: x-delivery-limit; "" if the broker did not say
	Text string // the broker's words
}

func (e *ArgumentError) Error() string {
	arg := e.Arg
	if arg == "" {
		arg = "an argument"
	}
	return fmt.Sprintf("%s exists with another %s than rollbackd needs (%s); "+
		"delete it when it is empty and let rollbackd make it anew, or choose another name", e.What, arg, e.Text)
}

// Declare makes exchange, queues and bindings, or checks that they are what rollbackd needs; running it again changes
// nothing. Where the user may not configure (403) it only checks that the thing exists and says in the warnings that
// its arguments are unchecked. Policies cannot be seen over AMQP. An existing thing with other arguments gives an
// ArgumentError.
func Declare(ctx context.Context, c *Conn, t TopologyConfig) (warnings []string, err error) {
	if err := t.Validate(); err != nil {
		return nil, err
	}
	warnings, err = versionWarnings(c.ServerVersion())
	if err != nil {
		return warnings, err
	}
	for _, step := range t.steps() {
		if step.declare == nil {
			err := c.onChannel(ctx, "check "+step.what, step.check)
			if hasCode(err, codeNotFound) {
				return warnings, fmt.Errorf("%s %w", step.what, ErrNoMain)
			}
			if err != nil {
				return warnings, err
			}
			continue
		}
		err := c.onChannel(ctx, "declare "+step.what, step.declare)
		switch {
		case hasCode(err, codePrecondition):
			return warnings, argumentError(step.what, err)
		case hasCode(err, codeRefused) && step.check != nil:
			if err := c.onChannel(ctx, "check "+step.what, step.check); err != nil {
				return warnings, fmt.Errorf("not allowed to declare it: %w", err)
			}
			warnings = append(warnings, step.what+" exists, but this user may not declare it: its arguments are unchecked")
		case hasCode(err, codeRefused):
			warnings = append(warnings, "this user may not make the "+step.what+": unchecked")
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
	for _, step := range t.steps() {
		if step.check == nil {
			continue
		}
		err := c.onChannel(ctx, "check "+step.what, step.check)
		switch {
		case hasCode(err, codeNotFound):
			missing = append(missing, step.what)
		case err != nil:
			return missing, err
		}
	}
	return missing, nil
}

// step is one thing on the broker. check is nil for bindings, which AMQP cannot look up; declare is nil for what is
// taken as it is.
type step struct {
	what           string
	queue          string // its name; "" if it is none
	declare, check func(*amqp.Channel) error
}

// steps are in such an order that everything a step refers to exists.
func (t TopologyConfig) steps() []step {
	var all []step
	if !t.TakeMain {
		all = append(all, t.exchange())
	}
	for _, q := range t.queues() {
		one := step{
			what: fmt.Sprintf("queue %q", q.name), queue: q.name,
			declare: func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclare(q.name, durable, !autoDelete, !exclusive, !noWait, q.args)
				return err
			},
			check: func(ch *amqp.Channel) error {
				_, err := ch.QueueDeclarePassive(q.name, durable, !autoDelete, !exclusive, !noWait, nil)
				return err
			},
		}
		if q.taken {
			one.declare = nil
		}
		all = append(all, one)
	}
	if t.TakeMain {
		return all
	}
	for _, key := range t.RoutingKeys {
		all = append(all, step{
			what: fmt.Sprintf("binding of queue %q to exchange %q by %q", t.Queue, t.Exchange, key),
			declare: func(ch *amqp.Channel) error {
				return ch.QueueBind(t.Queue, key, t.Exchange, !noWait, nil)
			},
		})
	}
	return all
}

func (t TopologyConfig) exchange() step {
	return step{
		what: fmt.Sprintf("exchange %q", t.Exchange),
		declare: func(ch *amqp.Channel) error {
			const internal = true
			return ch.ExchangeDeclare(t.Exchange, amqp.ExchangeTopic, durable, !autoDelete, !internal, !noWait, nil)
		},
		check: func(ch *amqp.Channel) error {
			const internal = true
			return ch.ExchangeDeclarePassive(t.Exchange, amqp.ExchangeTopic, durable, !autoDelete, !internal, !noWait, nil)
		},
	}
}

var inequivalent = regexp.MustCompile(`inequivalent arg '([^']+)'`)

func argumentError(what string, err error) error {
	b, ok := errors.AsType[*BrokerError](err)
	if !ok {
		return err
	}
	e := &ArgumentError{What: what, Text: b.Text}
	if m := inequivalent.FindStringSubmatch(b.Text); m != nil {
		e.Arg = m[1]
	}
	return e
}

// versionWarnings refuses brokers that cannot keep the promise and names what cannot be seen over AMQP.
func versionWarnings(version string) ([]string, error) {
	major, minor, ok := parseVersion(version)
	switch {
	case !ok:
		return []string{fmt.Sprintf("the broker's version %q is unknown; RabbitMQ 3.10 or later is needed", version)}, nil
	case major < 3 || major == 3 && minor < 10:
		return nil, fmt.Errorf("RabbitMQ %s dead-letters at most once; 3.10 or later is needed", version)
	case major == 3 && minor < 12:
		return []string{fmt.Sprintf("RabbitMQ %s dead-letters at least once only with the feature flag stream_queue; check "+
			"`rabbitmqctl list_feature_flags`", version)}, nil
	}
	return nil, nil
}

// countsAcquired: from 4.3, a broker writes x-acquired-count at each redelivery, and x-delivery-count only when a
// delivery failed.
func countsAcquired(version string) bool {
	major, minor, ok := parseVersion(version)
	return ok && (major > 4 || major == 4 && minor >= 3)
}

func parseVersion(v string) (major, minor int, ok bool) {
	a, rest, _ := strings.Cut(v, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, err1 == nil && err2 == nil
}
