package consumer_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// cancelAll applies a whole batch in one statement, and says which messages it cannot apply.
func cancelAll(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	var keys []string
	var blamed []consumer.BlamedMessage
	for i, m := range msgs {
		if !strings.HasPrefix(m.Key, "booking-") {
			err := fmt.Errorf("%q is no booking", m.Key)
			blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: consumer.Permanent(err)})
		}
		keys = append(keys, m.Key)
	}
	if len(blamed) > 0 {
		return consumer.Blame(blamed...) // what was written is undone, and the others are handled anew
	}
	return tx.Exec("UPDATE booking SET cancelled = 1 WHERE id IN ?", keys).Error
}

// Of a batch of three messages one cannot be applied. The handler blames it, so the other two lose nothing by it.
func ExampleBlame() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE booking (id VARCHAR(40) PRIMARY KEY, cancelled INT NOT NULL)")
	servers.Exec("INSERT INTO booking VALUES ('booking-1', 0), ('booking-2', 0), ('booking-3', 0)")
	for _, key := range []string{"booking-1", "umbrella", "booking-2"} {
		servers.Publish("bookings.cancel", key, "{}")
	}

	ctx, ended := servers.Until(3)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "bookings.cancel", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.HandlerFunc(cancelAll))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT id, cancelled FROM booking")
	// Unordered output:
	// umbrella dead_lettered
	// booking-1 applied
	// booking-2 applied
	// booking-1 1
	// booking-2 1
	// booking-3 0
}
