package deadletter_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// everything chooses all letters.
var everything deadletter.Filter

// Letters are exported as lines, for another program to read.
func ExampleLetters_Export() {
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
	var out bytes.Buffer
	n, err := letters.Export(ctx, everything, &out)
	if err != nil {
		log.Panic(err)
	}
	line, err := deadletter.ParseLine(bytes.TrimSpace(out.Bytes()))
	fmt.Println(n, line.Key, string(line.Body), err)
	// Output: 1 booking-1 {} <nil>
}
