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
	"github.com/rollbackd/rollbackd/outbox"
)

const (
	// Exchange, Queue and RoutingKey are the product's own defaults.
	Exchange, Queue, RoutingKey = "stock", "stock.rollback", "stock.rollback"
	// Group is the product's default too; rivals write it into the same column.
	Group = "stock-rollback"
	// events is the queue that events come to.
	events = "bench.events"
)

// amqpURL is the round's virtual host. Each round has one of its own: what a round before, or a declaration on which
// RabbitMQ gave up under load, has left is in nobody's way.
func (g *Ground) amqpURL() string { return fmt.Sprintf("%sround-%d", g.Stack.RabbitMQ.URL(), g.hosts) }

// newQueues removes the virtual host of the round before, with its queues and their logs on disk, and lets the product
// declare its queues in a new one.
func (f *Field) newQueues() {
	g := f.ground
	const by, replace = `<<"bench">>`, `catch rabbit_vhost:delete(<<"round-%[1]d">>, %[3]s), ok = ` +
		`rabbit_vhost:add(<<"round-%[2]d">>, %[3]s), ok = rabbit_auth_backend_internal:set_permissions(` +
		`<<"rollbackd">>, <<"round-%[2]d">>, <<".*">>, <<".*">>, <<".*">>, %[3]s)`
	must.Get(g.Stack.RabbitMQ.Eval(g.Ctx, fmt.Sprintf(replace, g.hosts, g.hosts+1, by)))
	g.hosts++
	cfg, _, err := config.Load(f.Environ())
	must.OK(err)
	g.mains, g.queues = f.Sown.mains(), nil
	for _, main := range g.mains {
		topology := rabbit.TopologyConfig{Exchange: Exchange, Queue: main, Delays: cfg.RetryDelays}
		g.queues = append(g.queues, topology.Queues()...)
	}
	f.migrate()
	if f.Sown.Emits {
		f.exec("TRUNCATE TABLE " + outbox.Table)
		g.onChannel("make queue "+events, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(events, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
			return errors.Join(err, ch.QueueBind(events, config.EmitStockReleased, Exchange, false, nil))
		})
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
		names = append(names, fmt.Sprintf("q%d", n))
		all = append(all, fmt.Sprintf("Q%d__QUEUE=%s", n, queue), fmt.Sprintf("Q%d__ROUTING_KEYS=%s", n, queue))
	}
	return append(all, "QUEUES="+strings.Join(names, ","))
}

// Depth is how many messages are ready in the main queues.
func (g *Ground) Depth() int64 { return g.depth(g.mains...) }

func (g *Ground) depth(queues ...string) (n int64) {
	g.onChannel("look at queues", func(ch *amqp.Channel) error {
		for _, queue := range queues {
			q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
			if err != nil {
				return err
			}
			n += int64(q.Messages)
		}
		return nil
	})
	return n
}

// onChannel runs do with a channel of a new connection, which nothing that went wrong before has ended.
func (g *Ground) onChannel(what string, do func(*amqp.Channel) error) {
	conn, err := amqp.Dial(g.amqpURL())
	must.OK(err, what)
	defer conn.Close() // what was asked is answered
	must.OK(do(must.Get(conn.Channel())), what)
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
	f.ground.onChannel("publish", func(ch *amqp.Channel) error {
		p := &Producer{field: f, ch: ch}
		defer func() { f.published.Add(p.published) }()
		must.OK(ch.Confirm(false))
		do(p)
		for len(p.open) > 0 {
			p.settle()
		}
		return nil
	})
}

// Publish sends the messages of the orders from to to-1, with bodies of so many bytes if that is not 0.
func (f *Field) Publish(from, to int64, bodyBytes int) {
	f.Producing(func(p *Producer) {
		p.BodyBytes = bodyBytes
		for n := from; n < to; n++ {
			p.Publish(n)
		}
	})
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
		MessageId: p.field.KeyOf(n), Body: padded(body(n, p.field.Sown.Goods), p.BodyBytes),
		ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
	})
	must.OK(err, "publish order")
	p.open = append(p.open, confirm)
	p.published++
}

// FillOutbox puts the messages of all orders into the outbox, and returns them as a relay sends them.
func (f *Field) FillOutbox() (sent []rabbit.Publishing) {
	var put []outbox.Message
	for n := range f.Sown.Orders {
		m := outbox.Message{Tag: RoutingKey, Key: f.KeyOf(n), Body: body(n, f.Sown.Goods)}
		put = append(put, m)
		sent = append(sent, rabbit.Publishing{Exchange: Exchange, Key: RoutingKey, Message: rabbit.Message{
			MessageID: m.Key, Type: m.Tag, ContentType: "application/json", Body: m.Body,
			Headers: rabbit.Table{rabbit.HeaderPublishedAt: time.Now().UnixMilli(), "x-message-key": m.Key},
		}})
	}
	tx := must.Get(f.DB.BeginTx(f.ground.Ctx, nil))
	must.OK(outbox.Put(f.ground.Ctx, tx, put...))
	must.OK(tx.Commit())
	return sent
}

// Send publishes messages without an outbox, with the relay's publisher and as many in flight.
func (g *Ground) Send(all []rabbit.Publishing) {
	const batches, batch = 4, 1000
	p := rabbit.NewPublisher(rabbit.Config{URLs: []string{g.amqpURL()}, Name: "bench"})
	defer p.Close(g.Ctx)
	parts := slices.Collect(slices.Chunk(all, batch))
	must.Side(batches, func(at int) {
		for ; at < len(parts); at += batches {
			must.OK(errors.Join(p.Publish(g.Ctx, parts[at])...))
		}
	})
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

// Published is how many messages the producers that have closed have published in this round.
func (f *Field) Published() int64 { return f.published.Load() }

// countedWithin is how long RabbitMQ may take until it counts what it has confirmed.
const countedWithin = 20 * time.Second

// publishBacklog publishes the orders in their order, as a shop would; where nothing is reserved the order is nobody's
// business, and three connections are faster.
func (f *Field) publishBacklog() {
	producers := 1
	if f.Sown.Unreserved {
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
	const usual = 10_000
	s := p.field.Sown
	rng := rand.New(rand.NewPCG(s.Seed, 2))
	block := cmp.Or(s.Twins, usual)
	for from := first * block; from < s.Orders; from += every * block {
		must.OK(context.Cause(p.field.ground.Ctx))
		size := min(block, s.Orders-from)
		for n := range size {
			p.Publish(from + n)
		}
		if s.Twins > 0 {
			for _, n := range rng.Perm(int(size)) {
				p.Publish(from + int64(n))
			}
		}
	}
}
