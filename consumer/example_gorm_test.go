package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/rollbackd/rollbackd/consumer"
)

// Booking and Refund are gorm models. Their tables are in the schema of the consumer log.
type (
	Booking struct {
		ID        string `gorm:"primaryKey;size:40"`
		PaidCents int
		Cancelled bool
	}
	Refund struct {
		ID        uint
		BookingID string `gorm:"size:40"`
		Cents     int
	}
)

// cancelBooking uses tx like any other gorm handle, and never ends its transaction.
func cancelBooking(_ context.Context, tx *gorm.DB, m consumer.Message) error {
	var b Booking
	err := tx.Clauses(clause.Locking{Strength: "UPDATE"}).First(&b, "id = ?", m.Key).Error
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return consumer.Permanent(err)
	}
	if err != nil {
		return err // rolled back; a lost connection or a deadlock costs no attempt
	}
	if err := tx.Model(&b).Update("cancelled", true).Error; err != nil {
		return err
	}
	return tx.Create(&Refund{BookingID: b.ID, Cents: b.PaidCents}).Error
}

// A handler reads and writes with gorm's models.
func ExampleEach_gorm() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE bookings (id VARCHAR(40) PRIMARY KEY, paid_cents INT NOT NULL, cancelled BOOL NOT NULL)")
	servers.Exec("CREATE TABLE refunds (id INT AUTO_INCREMENT PRIMARY KEY, booking_id VARCHAR(40), cents INT NOT NULL)")
	servers.Exec("INSERT INTO bookings VALUES ('booking-1', 4200, FALSE)")
	servers.Publish("bookings.cancelled", "booking-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "bookings.cancelled", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.Each(cancelBooking))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT booking_id, cents, cancelled FROM bookings JOIN refunds ON booking_id = bookings.id")
	// Output:
	// booking-1 applied
	// booking-1 4200 1
}
