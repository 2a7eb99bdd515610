package deadletter_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// anyTag shows the letters of a key, whatever their tags.
const anyTag = ""

// A program shows one letter, with its body and its story.
func ExampleLetters_Show() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Dead("seats.free", "booking-1")

	ctx := context.Background()
	cfg := consumer.Config{MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.free"}
	db, _, err := dedup.Open(ctx, cfg.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	servers.Closes(db)
	letters, err := cfg.Letters(db)
	if err != nil {
		log.Panic(err)
	}
	shown, err := letters.Show(ctx, "booking-1", anyTag)
	if err != nil {
		log.Panic(err)
	}
	for _, l := range shown {
		fmt.Println(l.Key, l.Body, l.Reason, l.Events[0].To)
	}
	// Output: booking-1 {} permanent dead
}
