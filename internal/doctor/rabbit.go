package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// checkRabbit looks at every URL, and at what is behind the first that answers.
func checkRabbit(ctx context.Context, cfg config.Config, o Options, l *list) {
	var first *rabbit.Conn
	var url string
	var away []error
	for _, u := range cfg.AMQPURLs {
		var encryption shown
		conn, err := rabbit.Dial(ctx, rabbit.Config{URLs: []string{u}, Name: o.Name, Certs: encryption.store()})
		if err != nil {
			away = append(away, err)
			continue
		}
		defer func() { _ = conn.Close() }() // everything is asked by then
		l.ok("reachable", conn.Where())
		encryption.check(l, []string{rabbit.Host(u)}, rabbit.TLSSetting, "ROLLBACKD_AMQP_URL", "write amqps://")
		checkBrokerVersion(conn, l)
		if first == nil {
			first, url = conn, u
		}
	}
	for _, err := range away {
		advice := orCertificates(err, "is it running there, and are user, password and vhost right? See ROLLBACKD_AMQP_URL")
		if first == nil {
			l.fail("reachable", err.Error(), advice)
		} else { // one that answers is enough
			l.warn("reachable", err.Error(), advice)
		}
	}
	if first == nil {
		return
	}
	checkTopology(ctx, cfg, o, first, l)
	checkPublishing(ctx, o, url, l)
	if cfg.Topology == consumer.TopologyCheck {
		checkTaken(ctx, cfg, o, first, url, l)
	} else {
		checkBinding(ctx, cfg, first, l)
	}
	l.note("bindings and policies", "AMQP does not show them; a policy with TTL, expiry or max-length on "+cfg.Queue+
		" or "+rabbit.DeadQueue(cfg.Queue)+
		" would drop messages: `rabbitmqctl list_bindings`, `rabbitmqctl list_policies`. One that makes a full queue "+
		"refuse messages (reject-publish) shows at the daemon that meets it, under degraded")
}

func checkBrokerVersion(conn *rabbit.Conn, l *list) {
	version := conn.ServerVersion()
	warnings, err := rabbit.VersionWarnings(version)
	switch {
	case err != nil:
		l.fail("version", err.Error(), "use RabbitMQ 3.10 or later")
	case len(warnings) > 0:
		l.warn("version", strings.Join(warnings, "; "), "enable the feature flag if it is off: rabbitmqctl "+
			"enable_feature_flag stream_queue")
	default:
		l.ok("version", "RabbitMQ "+version)
	}
}

func topologyOf(cfg config.Config) rabbit.TopologyConfig {
	return rabbit.TopologyConfig{
		Exchange: cfg.Exchange, Queue: cfg.Queue, RoutingKeys: cfg.RoutingKeys, Delays: cfg.RetryDelays,
		TakeMain: cfg.Topology == consumer.TopologyCheck,
	}
}

// checkTaken looks at a main queue that is taken as it is: what it is, and what policies give it.
func checkTaken(ctx context.Context, cfg config.Config, o Options, conn *rabbit.Conn, url string, l *list) {
	const name = "policy of the main queue"
	found, err := rabbit.LookAtMain(ctx, rabbit.Config{URLs: []string{url}, Name: o.Name}, conn, cfg.RabbitMQAPIURL,
		topologyOf(cfg))
	switch {
	case errors.Is(err, rabbit.ErrClassic):
		l.fail(name, err.Error(), o.Program+" move")
	case err != nil:
		l.warn(name, err.Error(), "mend that, see ROLLBACKD_RABBITMQ_API_URL; what the queue needs is\n"+found.Command)
	case !found.Seen:
		l.warn(name, "AMQP does not show what policies give "+cfg.Queue+", and an exact pattern matches no other queue "+
			"that could be tried instead", "set ROLLBACKD_RABBITMQ_API_URL, or compare `rabbitmqctl list_policies` with\n"+
			found.Command)
	case len(found.Flaws) > 0:
		l.fail(name, strings.Join(found.Flaws, "; "), found.Command)
	default:
		l.ok(name, "gives it what a declared one has")
	}
}

func checkTopology(ctx context.Context, cfg config.Config, o Options, conn *rabbit.Conn, l *list) {
	things, err := rabbit.Inspect(ctx, conn, topologyOf(cfg))
	if err != nil {
		l.fail("exchange and queues", err.Error(), "run again; see RabbitMQ's log")
		return
	}
	for _, th := range things {
		switch {
		case th.Missing && th.Taken:
			l.fail(th.What, rabbit.ErrNoMain.Error(), "see docs/adopting.md")
		case th.Missing:
			l.fail(th.What, "it does not exist", o.Program+" migrate")
		case th.Err != nil:
			l.fail(th.What, th.Err.Error(), "see above; nothing was changed")
		case th.Unchecked:
			l.warn(th.What, "it exists; this user may not declare it, so its arguments are unchecked", "let '"+o.Program+
				" migrate' run once with a user who may configure it")
		case th.Taken:
			l.ok(th.What, fmt.Sprintf("taken as it is; %d messages ready, %d consumers", th.Ready, th.Consumers))
		case th.Queue == "":
			l.ok(th.What, "as it must be")
		default:
			l.ok(th.What, fmt.Sprintf("as it must be; %d messages ready, %d consumers", th.Ready, th.Consumers))
		}
	}
	for _, th := range things {
		if th.Queue == "" || th.Missing {
			continue
		}
		checkReading(ctx, conn, th, l)
		if th.Queue == rabbit.BackstopQueue(cfg.Queue) && th.Ready > 0 {
			l.warn("backstop", fmt.Sprintf("%d messages that RabbitMQ gave up wait in %s", th.Ready, th.Queue),
				"a daemon files them at once; if they stay although one runs, the first of them ends its connections: see "+
					"degraded on its /readyz, mend what cuts them, or take it out by hand")
		}
		if th.Queue == cfg.Queue && th.Consumers == 0 {
			l.warn("daemon", "nobody consumes from "+th.Queue, o.Program+" run")
		}
	}
}

// checkReading consumes from an empty queue only: from another it would take a message for a moment.
func checkReading(ctx context.Context, conn *rabbit.Conn, th rabbit.Inspection, l *list) {
	name := "right to read " + th.Queue
	if th.Ready > 0 {
		l.note(name, "not tried, because messages wait in it")
		return
	}
	if err := conn.MayRead(ctx, th.Queue); err != nil {
		l.fail(name, err.Error(), "give the user the read permission on it: see "+rightsPage)
		return
	}
	l.ok(name, "it may be consumed from")
}

// checkBinding looks at the rights with which what is missing is made anew, and messages are published by hand.
func checkBinding(ctx context.Context, cfg config.Config, conn *rabbit.Conn, l *list) {
	const binding, publishing = "right to bind", "right to publish to the exchange"
	if err := conn.MayBind(ctx, cfg.Queue, cfg.Exchange); err != nil {
		l.warn(binding, err.Error(), "give the user the write permission on "+cfg.Queue+" and read on "+cfg.Exchange+
			": else a daemon that misses its binding cannot make it, see "+rightsPage)
	} else {
		l.ok(binding, cfg.Queue+" may be bound to "+cfg.Exchange)
	}
	err := conn.MayPublish(ctx, cfg.Exchange)
	if gone, ok := errors.AsType[*rabbit.BrokerError](err); ok && gone.Code == 404 {
		return // that there is no exchange was said above; no permission would help
	}
	if err != nil {
		l.warn(publishing, err.Error(), "give the user the write permission on "+cfg.Exchange+
			": `publish` needs it, the daemon does not")
	} else {
		l.ok(publishing, cfg.Exchange+" may be published to")
	}
}

// checkPublishing publishes to a queue that cannot exist: that the broker returns the message, and confirms it, is the
// whole way of a copy but for its queue.
func checkPublishing(ctx context.Context, o Options, url string, l *list) {
	const name = "right to publish copies"
	publisher := rabbit.NewPublisher(rabbit.Config{URLs: []string{url}, Name: o.Name})
	defer func() { _ = publisher.Close(context.WithoutCancel(ctx)) }() // nothing waits in it
	err := publisher.Publish(ctx, []rabbit.Publishing{{
		Key: "rollbackd.doctor." + uuid.NewString(), Message: rabbit.Message{DeliveryMode: rabbit.Persistent},
	}})[0]
	switch {
	case errors.Is(err, rabbit.ErrUnroutable):
		l.ok(name, "the default exchange takes, returns and confirms")
	case errors.Is(err, rabbit.ErrForbidden):
		l.fail(name, err.Error(), "give the user the write permission on the default exchange, amq.default")
	case err != nil && publisher.Blocked() != "":
		l.fail(name, "RabbitMQ blocks publishers: "+publisher.Blocked(), "free memory or disk of the broker")
	case err != nil:
		l.fail(name, err.Error(), "see RabbitMQ's log")
	default:
		l.warn(name, "a message to a queue that cannot exist was taken", "is there an alternate exchange or a plugin "+
			"behind the default exchange? Copies may go astray")
	}
}
