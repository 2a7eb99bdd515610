package deadletter_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// oldBooking chooses one letter by its key.
var oldBooking = deadletter.Filter{Keys: []string{"booking-1"}}

// A person decides that a message shall have no effect, now or later.
func ExampleLetters_Discard() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Dead("seats.free", "booking-1", "booking-2")

	ctx := context.Background()
	cfg := consumer.Config{ // that of the consumer
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.free",
	}
	db, _, err := dedup.Open(ctx, cfg.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	servers.Closes(db)
	letters, err := cfg.Letters(db)
	if err != nil {
		log.Panic(err)
	}
	result, err := letters.Discard(ctx, oldBooking, deadletter.DiscardOptions{
		By: "support desk", Why: "the show is over",
	})
	if err != nil {
		log.Panic(err)
	}
	fmt.Println("discarded:", result.Discarded, "stay:", result.NotSelected)
	// Output:
	// discarded: 1 stay: 1
}
