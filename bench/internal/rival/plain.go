package rival

import (
	"context"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// Of 1, 2 and 4 channels with prefetches of 200, 1,000 and 4,000 none took less CPU for a delivery than these.
	plainChannels = 4
	plainPrefetch = 1000
	// ackEvery is how many deliveries one ack settles with multiple.
	ackEvery = 500
)

// plain consumes and acks, and does nothing else: no queue of this kind can be worked on faster by this client.
func plain(ctx context.Context, c contest, every int) error {
	conn, err := amqp.Dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	errs := make(chan error, plainChannels)
	var wg sync.WaitGroup
	for range plainChannels {
		wg.Go(func() {
			if err := plainChannel(ctx, conn, c, every); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

func plainChannel(ctx context.Context, conn *amqp.Connection, c contest, every int) error {
	ch, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer ch.Close()
	deliveries, err := consume(ch, c.cfg.Queue, plainPrefetch)
	if err != nil {
		return err
	}
	n := 0
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return fmt.Errorf("consume from %s: it ended", c.cfg.Queue)
			}
			if n++; n%every != 0 {
				continue
			}
			if err := d.Ack(every > 1); err != nil {
				return fmt.Errorf("ack: %w", err)
			}
			c.counts.applied.Add(int64(every))
		case <-ctx.Done():
			return nil
		}
	}
}

// consume starts a consumer with manual acks.
func consume(ch *amqp.Channel, queue string, prefetch int) (<-chan amqp.Delivery, error) {
	const global, autoAck, exclusive, noLocal, noWait = false, false, false, false, false
	if err := ch.Qos(prefetch, 0, global); err != nil {
		return nil, fmt.Errorf("set the prefetch: %w", err)
	}
	deliveries, err := ch.Consume(queue, "", autoAck, exclusive, noLocal, noWait, nil)
	if err != nil {
		return nil, fmt.Errorf("consume from %s: %w", queue, err)
	}
	return deliveries, nil
}
