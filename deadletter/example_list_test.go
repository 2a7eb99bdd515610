package deadletter_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// allLetters reads page after page, the latest letter first.
func allLetters(ctx context.Context, letters *deadletter.Letters) (all []deadletter.Letter, err error) {
	for after := dedup.Cursor(""); ; {
		page, next, err := letters.List(ctx, deadletter.Filter{Limit: 100}, after)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" {
			return all, nil
		}
		after = next
	}
}

// A program lists dead letters, from the consumer log alone.
func ExampleLetters_List() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Dead("seats.free", "booking-1") // its handler refused it for good

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
	found, err := allLetters(ctx, letters)
	if err != nil {
		log.Panic(err)
	}
	for _, l := range found {
		fmt.Printf("%s: %s, %s\n", l.Key, l.Reason, l.Remark)
	}
	// Output:
	// booking-1: permanent, the booking office is closed
}
