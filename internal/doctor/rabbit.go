package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// lookAtRabbit looks at every URL, and at what is behind the first that answers.
func lookAtRabbit(ctx context.Context, a *area) {
	var first *rabbit.Conn
	var behind rabbit.Config
	var away []error
	for _, u := range a.AMQPURLs {
		var encryption shown
		at := rabbit.Config{URLs: []string{u}, Name: connections(), Certs: encryption.store()}
		conn, err := rabbit.Dial(ctx, at)
		if err != nil {
			away = append(away, err)
			continue
		}
		defer func() { _ = conn.Close() }() // everything is asked by then
		a.ok("reachable", conn.Where())
		encryption.tell(a, []string{rabbit.Host(u)}, rabbit.TLSSetting, "ROLLBACKD_AMQP_URL", "write amqps://")
		version := conn.ServerVersion()
		warnings, err := rabbit.VersionWarnings(version)
		if !a.failed("version", err, "use RabbitMQ 3.10 or later") {
			a.tell("version", warnIf(len(warnings) > 0, strings.Join(warnings, "; "), "enable the feature flag if it is off: "+
				"rabbitmqctl enable_feature_flag stream_queue"), fine("RabbitMQ "+version))
		}
		if first == nil {
			first, behind = conn, rabbit.Config{URLs: at.URLs, Name: at.Name}
		}
	}
	for _, err := range away {
		advice := orCertificates(err, "is it running there, and are user, password and vhost right? See ROLLBACKD_AMQP_URL")
		a.tell("reachable", failIf(first == nil, err.Error(), advice),
			warnIf(true, err.Error(), advice)) // one that answers is enough
	}
	if first == nil {
		return
	}
	if a.ofRelay || a.Outbox {
		a.publishes(ctx, first)
	}
	if a.ofRelay {
		return
	}
	a.topology(ctx, first)
	a.publishing(ctx, behind)
	if a.Topology == consumer.TopologyCheck {
		a.taken(ctx, first, behind)
	} else {
		a.binding(ctx, first)
	}
	a.note("bindings and policies", "AMQP does not show them; a policy with TTL, expiry or max-length on "+a.Queue+
		" or "+rabbit.DeadQueue(a.Queue)+
		" would drop messages: `rabbitmqctl list_bindings`, `rabbitmqctl list_policies`. One that makes a full queue refuse "+
		"messages (reject-publish) shows at the daemon that meets it, under degraded")
}

// taken looks at a main queue that is taken as it is: what it is, and what policies give it.
func (a *area) taken(ctx context.Context, conn *rabbit.Conn, behind rabbit.Config) {
	found, err := rabbit.LookAtMain(ctx, behind, conn, a.RabbitMQAPIURL, a.TopologyConfig())
	a.tell("policy of the main queue",
		failIf(errors.Is(err, rabbit.ErrClassic), fmt.Sprint(err), a.program+" move"),
		warnIf(err != nil, fmt.Sprint(err), "mend that, see ROLLBACKD_RABBITMQ_API_URL; what the queue needs is\n"+
			found.Command),
		warnIf(!found.Seen, "AMQP does not show what policies give "+a.Queue+", and an exact pattern matches no other queue "+
			"that could be tried instead", "set ROLLBACKD_RABBITMQ_API_URL, or compare `rabbitmqctl list_policies` "+
			"with\n"+found.Command),
		failIf(len(found.Flaws) > 0, strings.Join(found.Flaws, "; "), found.Command),
		fine("gives it what a declared one has"))
}

func (a *area) topology(ctx context.Context, conn *rabbit.Conn) {
	things, err := rabbit.Inspect(ctx, conn, a.TopologyConfig())
	if a.failed("exchange and queues", err, "run again; see RabbitMQ's log") {
		return
	}
	for _, th := range things {
		counts := ""
		if th.Queue != "" {
			counts = fmt.Sprintf("; %d messages ready, %d consumers", th.Ready, th.Consumers)
		}
		a.tell(th.What,
			failIf(th.Missing && th.Taken, rabbit.ErrNoMain.Error(), "see docs/adopting.md"),
			failIf(th.Missing, "it does not exist", a.program+" migrate; or the name is misspelt: `rabbitmqctl list_queues` "+
				"says which there are"),
			failIf(th.Err != nil, fmt.Sprint(th.Err), "see above; nothing was changed"),
			warnIf(th.Unchecked, "it exists; this user may not declare it, so its arguments are unchecked", "let '"+
				a.program+" migrate' run once with a user who may configure it"),
			okIf(th.Taken, "taken as it is"+counts), fine("as it must be"+counts))
	}
	for _, th := range things {
		if th.Queue == "" || th.Missing {
			continue
		}
		a.reading(ctx, conn, th)
		a.tell("backstop", warnIf(th.Queue == rabbit.BackstopQueue(a.Queue) && th.Ready > 0,
			fmt.Sprintf("%d messages that RabbitMQ gave up wait in %s", th.Ready, th.Queue),
			"a daemon files them at once; if they stay although one runs, the first of them ends its connections: see degraded "+
				"on its /readyz, mend what cuts them, or take it out by hand"))
		a.tell("daemon", warnIf(th.Queue == a.Queue && th.Consumers == 0, "nobody consumes from "+th.Queue,
			a.program+" run"))
	}
}

// reading consumes from an empty queue only: from another it would take a message for a moment.
func (a *area) reading(ctx context.Context, conn *rabbit.Conn, th rabbit.Inspection) {
	name := "right to read " + th.Queue
	if th.Ready > 0 {
		a.note(name, "not tried, because messages wait in it")
	} else if !a.failed(name, conn.MayRead(ctx, th.Queue), "give the user the read permission on it: see "+rightsPage) {
		a.ok(name, "it may be consumed from")
	}
}

// binding looks at the rights with which what is missing is made anew, and messages are published by hand.
func (a *area) binding(ctx context.Context, conn *rabbit.Conn) {
	err := conn.MayBind(ctx, a.Queue, a.Exchange)
	a.tell("right to bind", warnIf(err != nil, fmt.Sprint(err), "give the user the write permission on "+a.Queue+
		" and read on "+a.Exchange+": else a daemon that misses its binding cannot make it, see "+rightsPage),
		fine(a.Queue+" may be bound to "+a.Exchange))
	if a.Outbox {
		return // publishes has looked
	}
	err = conn.MayPublish(ctx, a.Exchange)
	if gone, ok := errors.AsType[*rabbit.BrokerError](err); ok && gone.Code == 404 {
		return // that there is no exchange was said above; no permission would help
	}
	a.tell("right to publish to the exchange", warnIf(err != nil, fmt.Sprint(err), "give the user the write permission "+
		"on "+a.Exchange+": `publish` needs it, the daemon does not"),
		fine(a.Exchange+" may be published to"))
}

// publishing publishes to a queue that cannot exist: that the broker returns the message, and confirms it, is the
// whole way of a copy but for its queue.
func (a *area) publishing(ctx context.Context, behind rabbit.Config) {
	publisher := rabbit.NewPublisher(behind)
	defer func() { _ = publisher.Close(context.WithoutCancel(ctx)) }() // nothing waits in it
	err := publisher.Publish(ctx, []rabbit.Publishing{{
		Key: "rollbackd.doctor." + uuid.NewString(), Message: rabbit.Message{DeliveryMode: rabbit.Persistent},
	}})[0]
	a.tell("right to publish copies",
		okIf(errors.Is(err, rabbit.ErrUnroutable), "the default exchange takes, returns and confirms"),
		failIf(errors.Is(err, rabbit.ErrForbidden), fmt.Sprint(err), "give the user the write permission on the default "+
			"exchange, amq.default"),
		failIf(err != nil && publisher.Blocked() != "", "RabbitMQ blocks publishers: "+publisher.Blocked(),
			"free memory or disk of the broker"),
		failIf(err != nil, fmt.Sprint(err), "see RabbitMQ's log"),
		warnIf(true, "a message to a queue that cannot exist was taken", "is there an alternate exchange or a plugin behind "+
			"the default exchange? Copies may go astray"))
}
