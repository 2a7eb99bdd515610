package consumer_test

import (
	"context"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// refund gives the points of a booking back.
func refund(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	return tx.Exec("INSERT INTO refund VALUES (?)", m.Key).Error
}

// Two queues are consumed in one program, each by its own handler, on shared pools.
func ExampleOpenAll() {
	servers := exampleServers()
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (id INT PRIMARY KEY, booking VARCHAR(40))")
	servers.Exec("INSERT INTO seat VALUES (1, 'booking-1'), (2, 'booking-2')")
	servers.Exec("CREATE TABLE refund (booking VARCHAR(40))")
	servers.Publish("seats.free", "booking-1", "{}")
	servers.Publish("points.refund", "booking-1", "{}")

	ctx, ended := servers.Until(2)
	seats := consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.free", Migrate: true,
		Observe: func(consumer.Ended) { ended() }, // a daemon stops at a signal
	}
	points := seats // Group and RoutingKeys follow Queue, unless they are set
	points.Queue = "points.refund"
	all, err := consumer.OpenAll(ctx,
		consumer.Member{Config: seats, Handler: consumer.Each(freeSeat)},
		consumer.Member{Config: points, Handler: consumer.Each(refund)})
	if err != nil {
		log.Panic(err)
	}
	if err := all.Run(ctx); err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT id, COALESCE(booking, 'free') FROM seat ORDER BY id")
	servers.Show("SELECT booking FROM refund")
	fmt.Println("drained")
	// Output:
	// 1 free
	// 2 booking-2
	// booking-1
	// drained
}
