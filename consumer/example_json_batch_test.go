package consumer_test

import (
	"context"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// seatRow is a message's body, and a row.
type seatRow struct {
	Number  int    `json:"seat"`
	TakenBy string `json:"by"`
}

// takeSeats writes what a batch asks for with one statement, but for messages that name nobody.
func takeSeats(_ context.Context, tx *gorm.DB, all []seatRow, _ []consumer.Message) error {
	var rows []seatRow
	var blamed []consumer.BlamedMessage
	for i, s := range all {
		if s.TakenBy == "" {
			err := consumer.Permanent(fmt.Errorf("nobody takes seat %d", s.Number))
			blamed = append(blamed, consumer.BlamedMessage{Index: i, Err: err})
			continue
		}
		rows = append(rows, s)
	}
	if len(rows) > 0 {
		if err := tx.Table("seat").Create(rows).Error; err != nil {
			return err
		}
	}
	return consumer.Except(blamed...) // all others are applied
}

// A typed handler of a whole batch gets the bodies beside their messages, and may blame single ones.
func ExampleJSONBatch() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (number INT PRIMARY KEY, taken_by VARCHAR(40) NOT NULL)")
	servers.Publish("seats.all", "booking-1", `{"seat":12,"by":"Ada"}`)
	servers.Publish("seats.all", "booking-2", `{"seat":13}`)
	servers.Publish("seats.all", "booking-3", `{"seat":14,"by":"Bob"}`)

	ctx, ended := servers.Until(3)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.all", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.JSONBatch(takeSeats))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT number, taken_by FROM seat")
	// Unordered output:
	// booking-1 applied
	// booking-2 dead_lettered
	// booking-3 applied
	// 12 Ada
	// 14 Bob
}
