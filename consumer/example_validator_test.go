package consumer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// seatChange is a message's body.
type seatChange struct {
	Seat int `json:"seat"`
}

// seatChanger is a Handler and a Validator.
type seatChanger struct{}

// Validate reads the body once, before any transaction.
func (seatChanger) Validate(m *consumer.Message) error {
	var change seatChange
	if err := json.Unmarshal(m.Body, &change); err != nil {
		return err
	}
	m.Value = change
	return nil
}

// Handle gets messages that Validate has let pass.
func (seatChanger) Handle(_ context.Context, tx *gorm.DB, msgs []consumer.Message) error {
	for _, m := range msgs {
		seat := m.Value.(seatChange).Seat
		if err := tx.Exec("INSERT INTO seat (booking, number) VALUES (?, ?)", m.Key, seat).Error; err != nil {
			return err
		}
	}
	return nil
}

// A message that nobody can read is dead-lettered before any transaction, with the reason malformed.
func ExampleValidator() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (booking VARCHAR(40) NOT NULL, number INT NOT NULL)")
	servers.Publish("seats.change", "booking-1", `{"seat":12}`)
	servers.Publish("seats.change", "booking-2", `{"seat":`)

	ctx, ended := servers.Until(2)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.change", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Printf("%s %v, reason %q\n", e.Key, e.Outcome, e.Reason); ended() },
	}, seatChanger{})
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT booking, number FROM seat")
	// Unordered output:
	// booking-2 dead_lettered, reason "malformed"
	// booking-1 applied, reason ""
	// booking-1 12
}
