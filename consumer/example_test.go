package consumer_test

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// A handler of one message says what became of it.
func ExampleEach() {
	handler := consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		freed := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ? AND taken = 1", m.Key) // Key is the message's
		if freed.Error != nil {
			return freed.Error // rolled back; a lost connection or a deadlock costs no attempt
		}
		if freed.RowsAffected == 0 {
			return consumer.Permanent(errors.New("nobody holds this booking")) // dead-lettered at once
		}
		return nil // committed with the success mark, or not at all
	})
	_ = handler
}

// A whole program: it makes the consumer log, the exchange and the queues, consumes until SIGTERM, and drains.
func ExampleRun() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	release := func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		return tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ?", m.Key).Error
	}
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: os.Getenv("MYSQL_DSN"), AMQPURLs: []string{os.Getenv("AMQP_URL")}, Queue: "seats.release", Migrate: true,
	}, consumer.Each(release))
	if err != nil {
		log.Fatal(err)
	}
}
