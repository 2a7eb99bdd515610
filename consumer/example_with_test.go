package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

type tenantKey struct{}

// ofTenant is middleware that puts the tenant of a message into the handler's context. A message without one is none of
// ours.
func ofTenant(next consumer.Handler) consumer.Handler {
	return consumer.HandlerFunc(func(ctx context.Context, tx *gorm.DB, msgs []consumer.Message) error {
		tenant, ok := msgs[0].Headers["tenant"].(string) // around a handler for one message, there is one
		if !ok {
			return consumer.Permanent(errors.New("no tenant"))
		}
		return next.Handle(context.WithValue(ctx, tenantKey{}, tenant), tx, msgs)
	})
}

func openShelf(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
	return tx.Exec("INSERT INTO shelf (tenant, name) VALUES (?, ?)", ctx.Value(tenantKey{}), m.Key).Error
}

// Middleware goes around the handler, within its transaction: here it logs what fails, takes the tenant from a header,
// and makes an error of a panic.
func ExampleWith() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE shelf (tenant VARCHAR(40) NOT NULL, name VARCHAR(40) NOT NULL)")
	servers.PublishAs("shelves.open", "", "shelf-1", "{}", map[string]any{"tenant": "north"})
	servers.PublishAs("shelves.open", "", "shelf-2", "{}", nil)

	ctx, ended := servers.Until(2)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "shelves.open", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Printf("%s %v, cause %q\n", e.Key, e.Outcome, e.Cause); ended() },
	}, consumer.With(consumer.Each(openShelf), consumer.Logged(slog.Default()), ofTenant, consumer.Recover))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT tenant, name FROM shelf")
	// Unordered output:
	// shelf-1 applied, cause ""
	// shelf-2 dead_lettered, cause "no tenant"
	// north shelf-1
}
