package rabbit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// DeliveryLimit is how often the main queue delivers a message again, unless a policy says less. It ends a crash loop:
	// beyond it the broker moves a message to the backstop. RabbitMQ 4 would take 20, which a few crashes of an innocent
	// neighbour's process use up: a crash is charged to every unacked message.
	DeliveryLimit = 200
	// neverLimit stands for "unlimited" on queues that are read by taking and giving back, which counts as deliveries.
	// RabbitMQ 4 limits to 20 when nothing is said and then drops; -1 means unlimited there but "drop at once" on RabbitMQ
	// 3.
	neverLimit = 1_000_000
	// retryMaxLength bounds what at-least-once dead-lettering may hold back while the main queue takes nothing; beyond it
	// the publish of a retry copy is nacked.
	retryMaxLength = 1_000_000
	maxNameBytes   = 255 // AMQP short string
)

// TopologyConfig names everything that rollbackd needs on the broker.
type TopologyConfig struct {
	Exchange    string          // topic exchange that producers publish to
	Queue       string          // main queue; all other queues' names derive from it
	RoutingKeys []string        // bind the main queue to the exchange
	Delays      []time.Duration // one retry queue each, whole milliseconds
	// TakeMain takes the main queue as it is: it must exist, and what feeds it is somebody else's. It is neither declared
	// nor bound, and no exchange is either; the queues beside it are. See [LookAtMain].
	TakeMain bool
}

// DeadQueue is the dead-letter queue's name, NAME.dead.
func DeadQueue(queue string) string { return queue + ".dead" }

// BackstopQueue is where the broker itself dead-letters the main queue's messages, NAME.backstop.
func BackstopQueue(queue string) string { return queue + ".backstop" }

// RetryQueue is the name of the retry queue with this delay, NAME.retry.DELAY. The delay is written in the largest unit
// of h, m, s and ms that gives a whole number: 90s, 2m, 1h, 1500ms.
func RetryQueue(queue string, delay time.Duration) string {
	return queue + ".retry." + delayText(delay)
}

func delayText(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d%s", d/u.unit, u.name)
		}
	}
	return d.String()
}

// Validate says which names or delays RabbitMQ could not take.
func (t TopologyConfig) Validate() error {
	var errs []error
	refuse := func(is bool, format string, values ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, values...))
		}
	}
	refuse(t.Exchange == "" || len(t.Exchange) > maxNameBytes, "exchange name %q must have 1 to %d bytes", t.Exchange,
		maxNameBytes)
	refuse(t.Queue == "" || strings.HasPrefix(t.Queue, "amq."), "queue name %q must not be empty nor start with \"amq.\"",
		t.Queue)
	for _, k := range t.RoutingKeys {
		refuse(len(k) > maxNameBytes, "routing key %q has more than %d bytes", k, maxNameBytes)
	}
	for _, d := range t.Delays {
		refuse(d < time.Millisecond || d%time.Millisecond != 0 || d > 1<<32*time.Millisecond/2,
			"retry delay %v must be whole milliseconds, from 1ms to about 24 days", d)
	}
	for _, name := range t.Queues() {
		refuse(len(name) > maxNameBytes, "queue name %q has more than %d bytes", name, maxNameBytes)
	}
	return errors.Join(errs...)
}

// Queues lists all queue names, in the order in which they are declared.
func (t TopologyConfig) Queues() []string {
	var names []string
	for _, q := range t.queues() {
		names = append(names, q.name)
	}
	return names
}

type queue struct {
	name string
	args Table
}

// mainArguments are those of a main queue that rollbackd makes.
func (t TopologyConfig) mainArguments() Table {
	// Not to a retry queue and never straight back: a cycle of dead-lettering without a rejection drops the message.
	return deadLetterTo(BackstopQueue(t.Queue), Table{"x-delivery-limit": int64(DeliveryLimit)})
}

// queues are all of type quorum: only those count deliveries and dead-letter at least once. Where a queue sends to
// stands before it.
func (t TopologyConfig) queues() []queue {
	kept := Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": int64(neverLimit)}
	all := []queue{
		{DeadQueue(t.Queue), kept},
		{BackstopQueue(t.Queue), kept}, // is read likewise and has no queue behind it, so it must not drop either
		{t.Queue, t.mainArguments()},
	}
	for _, d := range slices.Compact(slices.Sorted(slices.Values(t.Delays))) {
		// A TTL of the queue, one queue per delay: a message's own TTL takes effect only at the head of the queue.
		all = append(all, queue{RetryQueue(t.Queue, d), deadLetterTo(t.Queue, Table{
			amqp.QueueMessageTTLArg: d.Milliseconds(),
			amqp.QueueMaxLenArg:     int64(retryMaxLength),
		})})
	}
	return all
}

// deadLetterTo makes the broker move messages on through the default exchange without losing any: that takes a quorum
// queue, the at-least-once strategy and overflow reject-publish together (and the feature flag stream_queue before
// RabbitMQ 3.12). Without one of them the broker silently dead-letters at most once.
func deadLetterTo(target string, args Table) Table {
	args[amqp.QueueTypeArg] = amqp.QueueTypeQuorum
	args["x-dead-letter-exchange"] = ""
	args["x-dead-letter-routing-key"] = target
	args["x-dead-letter-strategy"] = "at-least-once"
	args[amqp.QueueOverflowArg] = amqp.QueueOverflowRejectPublish
	return args
}
