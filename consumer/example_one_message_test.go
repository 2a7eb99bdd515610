package consumer_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// freeSeat is called with one message at a time. The message's key is the booking.
func freeSeat(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	return tx.Exec("UPDATE seat SET booking = NULL WHERE booking = ?", m.Key).Error
}

// One message is consumed, and its effect is committed together with the mark that it is done.
func ExampleOpen_oneMessage() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (id INT PRIMARY KEY, booking VARCHAR(40))")
	servers.Exec("INSERT INTO seat VALUES (1, 'booking-1'), (2, 'booking-2')")
	servers.Publish("seats.free", "booking-1", "{}")

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	c, err := consumer.Open(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.free", Migrate: true,
		Observe: func(consumer.Ended) { stop() }, // a daemon stops at a signal
	}, consumer.Each(freeSeat))
	if err != nil {
		log.Panic(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT id, COALESCE(booking, 'free') FROM seat ORDER BY id")
	fmt.Println("drained")
	// Output:
	// 1 free
	// 2 booking-2
	// drained
}
