package consumer_test

import (
	"context"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// orderOver is the body of two kinds of messages.
type orderOver struct {
	Order  string `json:"order"`
	Pieces int    `json:"pieces"`
}

func cancelled(_ context.Context, tx *gorm.DB, o orderOver, _ consumer.Message) error {
	return tx.Exec("UPDATE shelf SET free = free + ?", o.Pieces).Error
}

func returned(_ context.Context, tx *gorm.DB, o orderOver, _ consumer.Message) error {
	return tx.Exec("UPDATE shelf SET used = used + ?", o.Pieces).Error
}

// Messages of several tags, which their AMQP type names, come in one queue, each to the handler of its tag.
func ExampleMux() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE shelf (free INT NOT NULL, used INT NOT NULL)")
	servers.Exec("INSERT INTO shelf VALUES (0, 0)")
	servers.PublishAs("orders.over", "order.cancelled", "order-1", `{"order":"order-1","pieces":2}`, nil)
	servers.PublishAs("orders.over", "order.returned", "order-2", `{"order":"order-2","pieces":3}`, nil)

	ctx, ended := servers.Until(2)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "orders.over", Migrate: true,
		Observe: func(consumer.Ended) { ended() },
	}, consumer.Mux{
		"order.cancelled": consumer.JSON(cancelled),
		"order.returned":  consumer.JSON(returned),
	})
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT free, used FROM shelf")
	// Output:
	// 2 3
}
