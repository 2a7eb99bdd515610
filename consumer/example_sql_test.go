package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// payBack uses database/sql's methods on the transaction. What sqlc generates takes consumer.SQL(tx) too.
func payBack(ctx context.Context, tx *gorm.DB, m consumer.Message) error {
	db := consumer.SQL(tx)
	var cents int
	err := db.QueryRowContext(ctx, "SELECT paid FROM booking WHERE id = ? FOR UPDATE", m.Key).Scan(&cents)
	if errors.Is(err, sql.ErrNoRows) {
		return consumer.Permanent(errors.New("nobody has this booking"))
	}
	if err != nil {
		return err // rolled back; a lost connection or a deadlock costs no attempt
	}
	_, err = db.ExecContext(ctx, "INSERT INTO refund (booking, cents) VALUES (?, ?)", m.Key, cents)
	return err
}

// A handler without gorm.
func ExampleSQL() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE booking (id VARCHAR(40) PRIMARY KEY, paid INT NOT NULL)")
	servers.Exec("CREATE TABLE refund (booking VARCHAR(40) NOT NULL, cents INT NOT NULL)")
	servers.Exec("INSERT INTO booking VALUES ('booking-1', 4200)")
	servers.Publish("bookings.pay-back", "booking-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "bookings.pay-back", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.Each(payBack))
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT booking, cents FROM refund")
	// Output:
	// booking-1 applied
	// booking-1 4200
}
