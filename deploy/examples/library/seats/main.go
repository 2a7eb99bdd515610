// Command seats frees the seats of cancelled bookings: producer, handler and the next message in one program.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/outbox"
	"gorm.io/driver/mysql"
	"gorm.io/gorm"
)

type booking struct{ ID string }

// cancel is the producer: the message is there if the booking is cancelled, and only then.
func cancel(ctx context.Context, b booking) error {
	db, err := gorm.Open(mysql.Open(os.Getenv("MYSQL_DSN")))
	if err != nil {
		return err
	}
	return db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE booking SET cancelled = 1 WHERE id = ?", b.ID).Error; err != nil {
			return err
		}
		return outbox.Put(ctx, consumer.SQL(tx), outbox.Message{Tag: "booking.cancelled", Key: b.ID, Value: b})
	})
}

// release is the handler: the seat is free, the message is done and the next one is on its way, or none of these.
func release(ctx context.Context, tx *gorm.DB, b booking, _ consumer.Message) error {
	if err := tx.Exec("UPDATE seat SET booking = NULL WHERE booking = ?", b.ID).Error; err != nil {
		return err
	}
	return outbox.Put(ctx, consumer.SQL(tx), outbox.Message{Tag: "seat.free", Key: b.ID, Value: b, RoutingKey: "mails"})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if len(os.Args) > 1 { // seats BOOKING
		if err := cancel(ctx, booking{os.Args[1]}); err != nil {
			log.Fatal(err)
		}
	} else if err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: os.Getenv("MYSQL_DSN"), AMQPURLs: []string{os.Getenv("AMQP_URL")},
		Queue: "seats", Migrate: true, Outbox: true,
	}, consumer.JSON(release)); err != nil {
		log.Fatal(err)
	}
}
