package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

var errUnknownBooking = errors.New("nobody has this booking")

// refundOnce refuses for good what no retry can cure. Any other error would be tried again.
func refundOnce(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	paid := tx.Exec("UPDATE booking SET refunded = 1 WHERE id = ? AND refunded = 0", m.Key)
	if paid.Error == nil && paid.RowsAffected == 0 {
		return consumer.Permanent(errUnknownBooking)
	}
	return paid.Error
}

// A message that can never be applied is dead-lettered at its first attempt, with its reason.
func ExamplePermanent() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE booking (id VARCHAR(40) PRIMARY KEY, refunded INT NOT NULL)")
	servers.Publish("bookings.refund", "booking-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "bookings.refund", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Printf("%s %v, %s: %s\n", e.Key, e.Outcome, e.Reason, e.Cause); ended() },
	}, consumer.Each(refundOnce))
	if err != nil {
		log.Panic(err)
	}
	// Output:
	// booking-1 dead_lettered, permanent: nobody has this booking
}
