package ground

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// newQueue deletes the queues of the round before, with their logs on disk, and lets the product declare them anew.
func (f *Field) newQueue() {
	cfg, _, err := config.Load(f.Environ())
	must.OK(err)
	var queues []string
	f.ground.mains = f.sown.mains()
	for _, main := range f.ground.mains {
		queues = append(queues, rabbit.TopologyConfig{Exchange: Exchange, Queue: main, Delays: cfg.RetryDelays}.Queues()...)
	}
	before := f.ground.queues
	f.ground.queues = queues
	for _, queue := range slices.Compact(slices.Sorted(slices.Values(append(before, queues...)))) {
		f.ground.onChannel("delete queue "+queue, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		})
	}
	f.migrate()
	if f.sown.Emits {
		f.newOutbox()
	}
}

// mains are the main queues of a round, each of which is its own routing key.
func (s Sowing) mains() []string {
	all := []string{Queue}
	for n := 1; n < s.Queues; n++ {
		all = append(all, fmt.Sprintf("%s.%d", Queue, n))
	}
	return all
}

// severalQueues are the settings with which a daemon consumes them.
func (s Sowing) severalQueues() (all []string) {
	if s.Queues < 2 {
		return nil
	}
	var names []string
	for n, queue := range s.mains() {
		name := fmt.Sprintf("q%d", n)
		names = append(names, name)
		all = append(all, strings.ToUpper(name)+"__QUEUE="+queue, strings.ToUpper(name)+"__ROUTING_KEYS="+queue)
	}
	return append(all, "QUEUES="+strings.Join(names, ","))
}

// Depth is how many messages are ready in the main queues.
func (g *Ground) Depth() (n int64) {
	for _, queue := range g.mains {
		n += g.depth(queue)
	}
	return n
}

// depths are how many messages are ready in the main queues, in the dead-letter queue, and in these and all others.
func (g *Ground) depths() (left, dead, all int64) {
	for _, queue := range g.queues {
		all += g.depth(queue)
	}
	return g.Depth(), g.depth(rabbit.DeadQueue(Queue)), all
}

func (g *Ground) depth(queue string) (n int64) {
	g.onChannel("look at queue "+queue, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = int64(q.Messages)
		return err
	})
	return n
}

// connect makes the bench's own connection to RabbitMQ.
func (g *Ground) connect() { g.amqp = must.Get(amqp.Dial(g.Stack.RabbitMQ.URL())) }

// Reconnect makes a new connection after a round that failed, as soon as RabbitMQ accepts one: an error such as 541
// ends the old one. And it removes members of queues that nobody owns: a declaration on which RabbitMQ gave up under
// load leaves one, and each later one fails with 541, cluster_not_formed.
func (g *Ground) Reconnect() {
	_ = g.amqp.Close() // it is dead, or about to be
	var err error
	g.Within(time.Minute, func() bool { err = must.Catch(g.connect); return err == nil })
	must.OK(err, "connect again")
	var names []string
	for _, queue := range g.queues {
		names = append(names, fmt.Sprintf("<<%q>>", queue))
	}
	g.eval(fmt.Sprintf(`[ra:force_delete_server(quorum_queues, {M, node()}) ||
		Q <- [%s], M <- [binary_to_atom(<<"%%2F_", Q/binary>>, utf8)], whereis(M) =/= undefined,
		rabbit_amqqueue:lookup({resource, <<"/">>, queue, Q}) =:= {error, not_found}]`, strings.Join(names, ",")))
}

// onChannel runs do with a channel of its own, because a refusal closes the channel.
func (g *Ground) onChannel(what string, do func(*amqp.Channel) error) {
	ch, err := g.amqp.Channel()
	if err == nil {
		err = errors.Join(do(ch), ch.Close())
	}
	must.OK(err, what)
}

// Producer publishes the messages of a field's orders with confirmation, many at a time.
type Producer struct {
	// BodyBytes, if not 0, is how large the bodies are made that are smaller.
	BodyBytes int

	field     *Field
	ch        *amqp.Channel
	open      []*amqp.DeferredConfirmation
	published int64
}

// How many messages, and bytes of their bodies, wait for their confirmations together.
const (
	inFlight      = 4000
	inFlightBytes = 64 << 20
)

// Producing runs do with a producer, which has a connection of its own, and waits for the last confirmations; then the
// field knows of the messages.
func (f *Field) Producing(do func(*Producer)) {
	conn := must.Get(amqp.Dial(f.ground.Stack.RabbitMQ.URL()))
	defer conn.Close() // all is confirmed, or has failed
	p := &Producer{field: f, ch: must.Get(conn.Channel())}
	defer func() { f.published.Add(p.published) }()
	must.OK(p.ch.Confirm(false))
	do(p)
	for len(p.open) > 0 {
		p.settle()
	}
}

// Publish sends the message of order n; it waits when too many are unconfirmed. One that came to no queue is confirmed
// too, but the field's check misses it.
func (p *Producer) Publish(n int64) {
	for len(p.open) >= inFlight || len(p.open)*p.BodyBytes > inFlightBytes {
		p.settle()
	}
	const mandatory, immediate = false, false
	mains := p.field.ground.mains
	key := mains[n%int64(len(mains))]
	confirm, err := p.ch.PublishWithDeferredConfirm(Exchange, key, mandatory, immediate, amqp.Publishing{
		MessageId: Key(p.field.sown.seed, n), Body: padded(body(n, p.field.sown.Goods), p.BodyBytes),
		ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
	})
	must.OK(err, "publish order")
	p.open = append(p.open, confirm)
	p.published++
}

// settle takes one confirmation. What was begun is ended, also when the run is cut short.
func (p *Producer) settle() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.field.ground.Ctx), time.Minute)
	defer cancel()
	if ok := must.Get(p.open[0].WaitContext(ctx)); !ok {
		must.OK(errors.New("rabbitmq refused a message or went away"))
	}
	p.open = p.open[1:]
}

// countedWithin is how long RabbitMQ may take until it counts what it has confirmed.
const countedWithin = 20 * time.Second

// blockOfTwins is how far apart the two copies of a message lie if nothing else is said: a block of messages is
// followed by its copies, shuffled.
const blockOfTwins = 10_000

// publishBacklog publishes the orders in their order, as a shop would; where nothing is reserved the order is nobody's
// business, and three connections are faster.
func (f *Field) publishBacklog() {
	producers := 1
	if f.sown.Unreserved {
		producers = 3
	}
	must.Side(producers, func(first int) {
		f.Producing(func(p *Producer) { p.publishBlocks(int64(first), int64(producers)) })
	})
	// RabbitMQ counts a little later than it confirms.
	f.ground.Until("the queue shows all messages that were confirmed", countedWithin, func() bool {
		return f.ground.Depth() == f.published.Load()
	})
}

// publishBlocks publishes its share of the blocks of orders: one of so many, beginning with the first.
func (p *Producer) publishBlocks(first, every int64) {
	s := p.field.sown
	rng := rand.New(rand.NewPCG(s.seed, 2))
	block := cmp.Or(s.TwinsApart, blockOfTwins)
	for from := first * block; from < s.Orders; from += every * block {
		must.OK(context.Cause(p.field.ground.Ctx))
		size := min(block, s.Orders-from)
		for n := range size {
			p.Publish(from + n)
		}
		if s.Twice {
			for _, n := range rng.Perm(int(size)) {
				p.Publish(from + int64(n))
			}
		}
	}
}
