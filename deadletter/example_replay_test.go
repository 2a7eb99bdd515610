package deadletter_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// permanent chooses the letters that a handler refused for good.
var permanent = deadletter.Filter{Reasons: []dedup.Reason{dedup.ReasonPermanent}}

// The cause is mended, so a program replays the letters, twenty at a time, and looks what becomes of them.
func ExampleLetters_Replay() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Dead("seats.free", "booking-1", "booking-2")
	stop := servers.Consume("seats.free") // by now it can apply them
	defer stop()

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
	result, err := letters.Replay(ctx, permanent, deadletter.ReplayOptions{
		By: "support desk", Window: 20, MaxFailures: 5,
	})
	if err != nil { // what was not finished is in the queue: run it again
		log.Panic(err)
	}
	fmt.Println("replayed:", result.Replayed, "applied:", result.Applied, "left:", len(result.Left))
	// Output:
	// replayed: 2 applied: 2 left: 0
}
