package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
)

// bank stands for a service that knows a call again by its key.
type bank struct {
	open bool
	paid map[string]bool
}

var errClosed = errors.New("the bank is closed")

// refund may be called again for what it has paid.
func (b *bank) refund(_ context.Context, key string) error {
	if !b.open {
		return errClosed
	}
	b.paid[key] = true
	return nil
}

// An effect outside MySQL is called for between a committed claim and a committed mark. A process that dies in between
// makes the same call again, so the call must say whom it is for.
func ExampleCalls() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Publish("bookings.refund", "booking-1", "{}")

	b := &bank{open: true, paid: map[string]bool{}}
	refund := func(ctx context.Context, m consumer.Message) error {
		err := b.refund(ctx, m.Key)
		if errors.Is(err, errClosed) {
			return consumer.Unavailable(err) // nothing is consumed until it is open, and no attempt is counted
		}
		return err
	}
	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "bookings.refund", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.Calls(refund, consumer.CallOptions{Concurrency: 1, Timeout: 2 * time.Second}))
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("paid:", b.paid["booking-1"])
	// Output:
	// booking-1 applied
	// paid: true
}
