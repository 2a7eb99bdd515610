package relay_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/outbox"
	"github.com/rollbackd/rollbackd/outbox/relay"
)

// hello is put by a service.
var hello = outbox.Message{Tag: "greeting", Key: "greeting-1", Value: "hello"}

// A service relays what it puts by itself. A consumer that has an Outbox in its Config does so too; here it shows that
// the message arrives.
func ExampleNew() {
	servers, db := exampleServers() // a RabbitMQ, and a schema with the table of the outbox
	defer servers.Close()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	cfg := consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "greetings", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); stop() },
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	r, err := relay.New(cfg.Relay(pool)) // or a relay.Config of your own
	if err != nil {
		log.Panic(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	err = db.Transaction(func(tx *gorm.DB) error { return outbox.Put(ctx, tx.Statement.ConnPool, hello) })
	if err != nil {
		log.Panic(err)
	}
	greet := func(context.Context, *gorm.DB, consumer.Message) error { return nil }
	if err := consumer.Run(ctx, cfg, consumer.Each(greet)); err != nil {
		log.Panic(err)
	}
	fmt.Println(<-done)
	// Output:
	// greeting-1 applied
	// <nil>
}
