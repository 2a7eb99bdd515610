package consumer_test

import (
	"context"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// countTicket is called with one message at a time.
func countTicket(_ context.Context, tx *gorm.DB, _ consumer.Message) error {
	return tx.Exec("UPDATE office SET tickets = tickets + 1").Error
}

// A program that has a pool already gives it to the consumer, which leaves it open.
func ExampleNew() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE office (tickets INT NOT NULL)")
	servers.Exec("INSERT INTO office VALUES (0)")
	servers.Publish("tickets.count", "ticket-1", "{}")

	ctx, ended := servers.Until(1)
	db, warnings, err := dedup.Open(ctx, servers.MySQLDSN, dedup.OpenOptions{MaxOpen: 40})
	if err != nil {
		log.Panic(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	for _, w := range warnings { // settings of the DSN that were overruled
		log.Print(w)
	}
	c, err := consumer.New(consumer.Config{
		AMQPURLs: []string{servers.AMQPURL}, Queue: "tickets.count", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.Each(countTicket), consumer.Options{DB: db})
	if err != nil {
		log.Panic(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Panic(err)
	}
	var tickets int
	if err := db.Raw("SELECT tickets FROM office").Scan(&tickets).Error; err != nil {
		log.Panic(err)
	}
	fmt.Println("tickets:", tickets)
	// Output:
	// ticket-1 applied
	// tickets: 1
}
