package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// seatTaken is the body of a message.
type seatTaken struct {
	Seat int    `json:"seat"`
	By   string `json:"by"`
}

// Validate refuses what can be read and makes no sense.
func (s seatTaken) Validate() error {
	if s.Seat < 1 {
		return errors.New("seats begin with 1")
	}
	return nil
}

// A typed handler gets the body decoded and validated; what cannot be read, or is refused, ends by itself.
func ExampleJSON() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (number INT PRIMARY KEY, taken_by VARCHAR(40) NOT NULL)")
	servers.Publish("seats.take", "booking-1", `{"seat":12,"by":"Ada","row":"b"}`)
	servers.Publish("seats.take", "booking-2", `{"seat":0,"by":"Bob"}`)
	servers.Publish("seats.take", "booking-3", `{"seat":`)

	take := func(_ context.Context, tx *gorm.DB, s seatTaken, _ consumer.Message) error {
		return tx.Exec("INSERT INTO seat (number, taken_by) VALUES (?, ?)", s.Seat, s.By).Error
	}
	ctx, ended := servers.Until(3)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.take", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Printf("%s %v, reason %q\n", e.Key, e.Outcome, e.Reason); ended() },
	}, consumer.JSON(take))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT number, taken_by FROM seat")
	// Unordered output:
	// booking-1 applied, reason ""
	// booking-2 dead_lettered, reason "permanent"
	// booking-3 dead_lettered, reason "malformed"
	// 12 Ada
}
