package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// nothing applies a message by doing nothing.
func nothing(context.Context, *gorm.DB, consumer.Message) error { return nil }

// In an empty schema a consumer does not run, unless it may make the tables of the consumer log. Where the account must
// not create tables, a deployment calls [dedup.Migrate] instead.
func ExampleConfig_migrate() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Publish("greetings", "greeting-1", "{}")

	ctx, ended := servers.Until(1)
	cfg := consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "greetings",
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}
	for _, migrate := range []bool{false, true} {
		cfg.Migrate = migrate
		c, err := consumer.Open(ctx, cfg, consumer.Each(nothing))
		if err != nil {
			log.Panic(err)
		}
		err = c.Run(ctx)
		if err != nil && !errors.Is(err, dedup.ErrSchema) {
			log.Panic(err)
		}
		fmt.Printf("migrate %v, no tables: %v\n", migrate, errors.Is(err, dedup.ErrSchema))
	}
	servers.Show("SELECT msg_key, consumer_status FROM consumer_log")
	// Output:
	// migrate false, no tables: true
	// greeting-1 applied
	// migrate true, no tables: false
	// greeting-1 1
}
