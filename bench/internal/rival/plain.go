package rival

import (
	"context"

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
func plain(ctx context.Context, c *contest, every int) error {
	conn, err := dial(c.cfg.AMQPURLs[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	return side(plainChannels, func() error {
		n := 0
		return c.consume(ctx, conn, plainPrefetch, func(d amqp.Delivery) error {
			if n++; n%every != 0 {
				return nil
			}
			c.applied.Add(int64(every))
			return d.Ack(every > 1)
		})
	})
}
