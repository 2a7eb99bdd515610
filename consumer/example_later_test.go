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

// freeWhenOver gives a seat back when its show is over. Until then it is too early, which is no failure.
func freeWhenOver(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	freed := tx.Exec("UPDATE seat SET booking = NULL WHERE booking = ? AND show_over = 1", m.Key)
	if freed.Error == nil && freed.RowsAffected == 0 {
		return consumer.Later(errors.New("the show goes on"), time.Second)
	}
	return freed.Error
}

// A message that comes too early comes again when it is asked to, and has had no attempt.
func ExampleLater() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (id INT PRIMARY KEY, booking VARCHAR(40), show_over INT NOT NULL)")
	servers.Exec("INSERT INTO seat VALUES (1, 'booking-1', 0)")
	servers.Publish("seats.over", "booking-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.over", Migrate: true,
		Observe: func(e consumer.Ended) {
			switch e.Outcome {
			case consumer.InProgress: // a copy waits in a retry queue
				servers.Exec("UPDATE seat SET show_over = 1")
			case consumer.Applied:
				fmt.Println(e.Key, e.Outcome, "in attempt", e.Attempt)
				ended()
			}
		},
	}, consumer.Each(freeWhenOver))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT id, COALESCE(booking, 'free') FROM seat")
	// Output:
	// booking-1 applied in attempt 1
	// 1 free
}
