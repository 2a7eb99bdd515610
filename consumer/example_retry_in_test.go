package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

var errNotYetPaid = errors.New("the ticket is not paid yet")

// sendPaid fails for a ticket that is not paid. Whoever has not paid at once takes a while: the delays grow with the
// attempts.
func sendPaid(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	sent := tx.Exec("UPDATE ticket SET sent = 1 WHERE id = ? AND paid = 1", m.Key)
	if sent.Error == nil && sent.RowsAffected == 0 {
		return consumer.RetryIn(errNotYetPaid, time.Duration(1+m.Attempt)*1500*time.Millisecond)
	}
	return sent.Error
}

// A failed attempt may say when the next one comes, in place of Config.RetryDelays.
func ExampleRetryIn() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE ticket (id VARCHAR(40) PRIMARY KEY, paid INT NOT NULL, sent INT NOT NULL)")
	servers.Exec("INSERT INTO ticket VALUES ('ticket-1', 0, 0)")
	servers.Publish("tickets.send", "ticket-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "tickets.send", Migrate: true,
		Observe: func(e consumer.Ended) {
			switch e.Outcome {
			case consumer.Retried:
				fmt.Println("failed:", e.Cause)
				servers.Exec("UPDATE ticket SET paid = 1")
			case consumer.Applied:
				ended()
			}
		},
	}, consumer.Each(sendPaid))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT id, sent FROM ticket")
	// Output:
	// failed: the ticket is not paid yet
	// ticket-1 1
}
