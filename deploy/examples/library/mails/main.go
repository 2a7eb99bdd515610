// Command mails writes what customers are told: a handler for each kind of message, and what is the same for all.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/rollbackd/rollbackd/consumer"
	"gorm.io/gorm"
)

type booking struct{ ID string }

// Validate refuses what can be read and makes no sense: a dead letter at once.
func (b booking) Validate() error {
	if b.ID == "" {
		return errors.New("no booking is named")
	}
	return nil
}

func tell(text string) consumer.Handler {
	return consumer.JSON(func(_ context.Context, tx *gorm.DB, b booking, _ consumer.Message) error {
		return tx.Exec("INSERT INTO mail (booking, text) VALUES (?, ?)", b.ID, text).Error
	})
}

// noted is middleware: what it writes is committed with what the handler writes, or not at all.
func noted(next consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		for _, m := range msgs {
			if err := tx.Exec("INSERT INTO seen (tag, booking) VALUES (?, ?)", m.Tag, m.Key).Error; err != nil {
				return err
			}
		}
		return next.Handle(ctx, tx, msgs)
	})
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: os.Getenv("MYSQL_DSN"), AMQPURLs: []string{os.Getenv("AMQP_URL")}, Queue: "mails", Migrate: true,
	}, consumer.With(consumer.Mux{
		"seat.free":    tell("your seat is free again"),
		"booking.made": tell("thank you"),
	}, consumer.Logged(slog.Default()), consumer.Recover, noted))
	if err != nil {
		log.Fatal(err)
	}
}
