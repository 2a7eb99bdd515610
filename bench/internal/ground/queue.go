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
	"golang.org/x/sync/errgroup"

	"github.com/rollbackd/rollbackd/internal/config"
	"github.com/rollbackd/rollbackd/internal/rabbit"
)

// newQueue deletes the queues of the round before, with their logs on disk, and lets the product declare them anew.
func (f *Field) newQueue(ctx context.Context) error {
	cfg, _, err := config.Load(f.Environ())
	if err != nil {
		return err
	}
	queues := rabbit.TopologyConfig{Exchange: Exchange, Queue: Queue, Delays: cfg.RetryDelays}.Queues()
	before := f.ground.queues
	f.ground.queues = queues
	for _, queue := range slices.Compact(slices.Sorted(slices.Values(append(before, queues...)))) {
		if err := f.ground.onChannel(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(queue, false, false, false)
			return err
		}); err != nil {
			return fmt.Errorf("delete queue %s: %w", queue, err)
		}
	}
	return f.migrate(ctx)
}

// Depth is how many messages are ready in the main queue.
func (g *Ground) Depth() (int64, error) { return g.depth(Queue) }

// depths are how many messages are ready in the main queue, in the dead-letter queue, and in these and all others.
func (g *Ground) depths() (left, dead, all int64, err error) {
	for _, queue := range g.queues {
		n, err := g.depth(queue)
		if err != nil {
			return 0, 0, 0, err
		}
		switch queue {
		case Queue:
			left = n
		case rabbit.DeadQueue(Queue):
			dead = n
		}
		all += n
	}
	return left, dead, all, nil
}

func (g *Ground) depth(queue string) (n int64, err error) {
	err = g.onChannel(func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = int64(q.Messages)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("look at queue %s: %w", queue, err)
	}
	return n, nil
}

// connect makes the bench's own connection to RabbitMQ.
func (g *Ground) connect() (err error) {
	if g.amqp, err = amqp.Dial(g.Stack.RabbitMQ.URL()); err != nil {
		return fmt.Errorf("connect to rabbitmq: %w", err)
	}
	return nil
}

// Reconnect makes a new connection after a round that failed, as soon as RabbitMQ accepts one: an error such as 541
// ends the old one. And it removes members of queues that nobody owns: a declaration on which RabbitMQ gave up under
// load leaves one, and each later one fails with 541, cluster_not_formed.
func (g *Ground) Reconnect(ctx context.Context) error {
	_ = g.amqp.Close() // it is dead, or about to be
	var err error
	late := Until(ctx, "rabbitmq accepts a connection", time.Minute, func() (bool, error) {
		err = g.connect()
		return err == nil, nil
	})
	if late != nil {
		return errors.Join(late, err)
	}
	return g.removeMembers(ctx)
}

// removeMembers removes the members of the round's queues that have no queue.
func (g *Ground) removeMembers(ctx context.Context) error {
	var names []string
	for _, queue := range g.queues {
		names = append(names, fmt.Sprintf("<<%q>>", queue))
	}
	_, err := g.Stack.RabbitMQ.Eval(ctx, fmt.Sprintf(`[ra:force_delete_server(quorum_queues, {M, node()}) ||
		Q <- [%s], M <- [binary_to_atom(<<"%%2F_", Q/binary>>, utf8)], whereis(M) =/= undefined,
		rabbit_amqqueue:lookup({resource, <<"/">>, queue, Q}) =:= {error, not_found}]`, strings.Join(names, ",")))
	return err
}

// onChannel runs do with a channel of its own, because a refusal closes the channel.
func (g *Ground) onChannel(do func(*amqp.Channel) error) error {
	ch, err := g.amqp.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	return errors.Join(do(ch), ch.Close())
}

// Producer publishes the messages of a field's orders with confirmation, many at a time.
type Producer struct {
	// BodyBytes, if not 0, is how large the bodies are made that are smaller.
	BodyBytes int

	field     *Field
	conn      *amqp.Connection
	ch        *amqp.Channel
	open      []*amqp.DeferredConfirmation
	published int64
}

// How many messages, and bytes of their bodies, wait for their confirmations together.
const (
	inFlight      = 4000
	inFlightBytes = 64 << 20
)

// Producer opens a connection of its own.
func (f *Field) Producer() (*Producer, error) {
	conn, err := amqp.Dial(f.ground.Stack.RabbitMQ.URL())
	if err != nil {
		return nil, fmt.Errorf("connect a producer: %w", err)
	}
	p := &Producer{field: f, conn: conn}
	if p.ch, err = conn.Channel(); err == nil {
		err = p.ch.Confirm(false)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a producer: %w", err), conn.Close())
	}
	return p, nil
}

// Publish sends the message of order n; it waits when too many are unconfirmed. One that came to no queue is confirmed
// too, but the field's check misses it.
func (p *Producer) Publish(ctx context.Context, n int64) error {
	for len(p.open) >= inFlight || len(p.open)*p.BodyBytes > inFlightBytes {
		if err := p.settle(ctx); err != nil {
			return err
		}
	}
	const mandatory, immediate = false, false
	confirm, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, Exchange, RoutingKey, mandatory, immediate,
		amqp.Publishing{
			MessageId: Key(p.field.sown.seed, n), Body: padded(body(n, p.field.sown.Goods), p.BodyBytes),
			ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: time.Now(),
		})
	if err != nil {
		return fmt.Errorf("publish order %d: %w", n, err)
	}
	p.open = append(p.open, confirm)
	p.published++
	return nil
}

// settle takes one confirmation.
func (p *Producer) settle(ctx context.Context) error {
	ok, err := p.open[0].WaitContext(ctx)
	p.open = p.open[1:]
	if err == nil && !ok {
		err = errors.New("rabbitmq refused a message or went away")
	}
	return err
}

// Close waits for the last confirmations; then the field knows of the messages.
func (p *Producer) Close(ctx context.Context) (err error) {
	for len(p.open) > 0 && err == nil {
		err = p.settle(ctx)
	}
	p.field.published.Add(p.published)
	return errors.Join(err, p.conn.Close())
}

// blockOfTwins is how far apart the two copies of a message lie if nothing else is said: a block of messages is
// followed by its copies, shuffled.
const blockOfTwins = 10_000

// publishBacklog publishes the orders in their order, as a shop would; where nothing is reserved the order is nobody's
// business, and three connections are faster.
func (f *Field) publishBacklog(ctx context.Context) error {
	producers := int64(1)
	if f.sown.Unreserved {
		producers = 3
	}
	all, publishing := errgroup.WithContext(ctx)
	for first := range producers {
		all.Go(func() error {
			p, err := f.Producer()
			if err != nil {
				return err
			}
			return errors.Join(f.publishBlocks(publishing, p, first, producers), p.Close(context.WithoutCancel(ctx)))
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	return f.waitForBacklog(ctx)
}

// publishBlocks publishes its share of the blocks of orders: one of so many, beginning with the first.
func (f *Field) publishBlocks(ctx context.Context, p *Producer, first, every int64) error {
	rng := rand.New(rand.NewPCG(f.sown.seed, 2))
	block := cmp.Or(f.sown.TwinsApart, blockOfTwins)
	for from := first * block; from < f.sown.Orders; from += every * block {
		size := int(min(block, f.sown.Orders-from))
		orders := make([]int, size)
		for n := range orders {
			orders[n] = n
		}
		if f.sown.Twice {
			orders = append(orders, rng.Perm(size)...)
		}
		for _, n := range orders {
			if err := p.Publish(ctx, from+int64(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitForBacklog waits until the queue shows all that was confirmed: RabbitMQ counts a little later.
func (f *Field) waitForBacklog(ctx context.Context) error {
	return Until(ctx, "the queue shows all messages that were confirmed", 20*time.Second, func() (bool, error) {
		n, err := f.ground.Depth()
		return n == f.published.Load(), err
	})
}
