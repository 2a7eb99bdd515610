package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// README.md shows this handler; internal/repo holds the two together.
func ExampleEach() {
	handler := consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		freed := tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ? AND taken = 1", m.Name) // Name is the message's key
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
func ExampleNew() {
	handler := consumer.Each(func(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
		return tx.Exec("UPDATE seat SET taken = 0 WHERE booking = ?", m.Name).Error
	})
	cfg := consumer.Config{
		Group: "seats", Exchange: "seats", Queue: "seats.release", RoutingKeys: []string{"seats.release"},
		KeyFrom:     "property:message_id",
		MaxAttempts: 3, RetryDelays: []time.Duration{time.Second, 10 * time.Second},
		Lanes: 4, BatchSize: 500, Prefetch: 1000,
		Lease: 30 * time.Second, HandlerTimeout: 10 * time.Second, DrainTimeout: 25 * time.Second,
	}

	run := func(ctx context.Context) error {
		db, warnings, err := dedup.Open(ctx, os.Getenv("MYSQL_DSN"), dedup.OpenOptions{Program: "seats"})
		if err != nil {
			return err
		}
		for _, w := range warnings {
			fmt.Fprintln(os.Stderr, w)
		}
		// The log stands in the schema of the handler's tables, or the two could not be committed together.
		if err := dedup.Migrate(ctx, db, dedup.MigrateOptions{Table: "seat_log"}); err != nil {
			return err
		}
		records, err := dedup.NewLog(db, dedup.LogOptions{
			Table: "seat_log", Lease: cfg.Lease, Delays: cfg.RetryDelays, MaxAttempts: cfg.MaxAttempts, // the engine's own
		})
		if err != nil {
			return err
		}
		engine, err := consumer.New(cfg, handler, consumer.Options{
			AMQPURLs: []string{os.Getenv("AMQP_URL")}, DB: db, Records: records,
		})
		if err != nil {
			return err
		}
		return engine.Run(ctx)
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
