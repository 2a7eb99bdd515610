package consumer_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// asked is the message that somebody asks about.
var asked = dedup.Identity{Group: "seats.free", Tag: "seats.free", Key: "booking-1"}

// A program asks what became of a message: its row, and each step that was not the straight way.
func ExampleConfig_LogOptions() {
	servers := exampleServers()
	defer servers.Close()
	servers.Dead("seats.free", "booking-1") // a consumer has refused it for good

	ctx := context.Background()
	db, _, err := dedup.Open(ctx, servers.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	servers.Closes(db)
	records, err := dedup.NewLog(db, consumer.Config{Queue: "seats.free"}.LogOptions())
	if err != nil {
		log.Panic(err)
	}
	row, err := records.Read(ctx, asked)
	events, err1 := records.Events(ctx, asked)
	other := dedup.Identity{Group: "seats.free", Tag: "seats.free", Key: "booking-2"}
	many, err2 := records.LookUp(ctx, []dedup.Identity{asked, other})
	dead, _, err3 := records.List(ctx, dedup.Filter{Group: "seats.free", Statuses: []dedup.Status{dedup.Dead}, Limit: 10})
	for _, err := range []error{err, err1, err2, err3, records.CheckSchema(ctx)} {
		if err != nil {
			log.Panic(err)
		}
	}
	fmt.Println(row.Status, row.Reason, row.Remark)
	fmt.Println(events[0].From, events[0].To)
	fmt.Println(many[other].Status, len(dead))
	// Output:
	// dead permanent the booking office is closed
	// absent dead
	// absent 1
}
