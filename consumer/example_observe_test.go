package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// outcomes counts how deliveries end. Lanes call ended at the same time.
type outcomes struct {
	mu    sync.Mutex
	count map[string]int
}

func (o *outcomes) ended(e consumer.Ended) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.count[e.Outcome.String()]++
}

// sendTicket writes what is to be sent into a table: mail would be sent at least once, a row is written exactly once.
func sendTicket(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	if len(m.Body) == 0 {
		return consumer.Malformed(errors.New("no address"))
	}
	return tx.Exec("INSERT INTO outbox (ticket, address) VALUES (?, ?)", m.Key, string(m.Body)).Error
}

// A producer sends one message twice, and one that cannot be read. Each delivery's end is observed.
func ExampleConfig_observe() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE outbox (ticket VARCHAR(40) NOT NULL, address VARCHAR(40) NOT NULL)")
	servers.Publish("tickets.send", "ticket-1", "buyer@example.org")
	servers.Publish("tickets.send", "ticket-1", "buyer@example.org")
	servers.Publish("tickets.send", "ticket-2", "")

	ctx, ended := servers.Until(3)
	seen := outcomes{count: map[string]int{}}
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "tickets.send", Migrate: true,
		Lanes: 1, Observe: func(e consumer.Ended) { seen.ended(e); ended() },
	}, consumer.Each(sendTicket))
	if err != nil {
		log.Panic(err)
	}
	fmt.Println(seen.count) // nobody writes any more: Run has returned
	servers.Show("SELECT ticket, address FROM outbox")
	// Output:
	// map[applied:1 dead_lettered:1 duplicate:1]
	// ticket-1 buyer@example.org
}
