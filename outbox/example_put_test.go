package outbox_test

import (
	"context"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/outbox"
)

// cancelled is the message of a booking that is cancelled.
func cancelled(booking string) outbox.Message {
	return outbox.Message{Tag: "booking.cancelled", Key: booking, Value: map[string]string{"booking": booking}}
}

// A booking is cancelled and its message is put, both or neither. A relay sends the message.
func ExamplePut() {
	servers, db := exampleServers() // a schema with the table of the outbox
	defer servers.Close()
	servers.Exec("CREATE TABLE booking (id VARCHAR(40) PRIMARY KEY, cancelled BOOL NOT NULL)")
	servers.Exec("INSERT INTO booking VALUES ('b1', FALSE)")

	err := db.Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE booking SET cancelled = TRUE WHERE id = 'b1'").Error; err != nil {
			return err
		}
		return outbox.Put(context.Background(), tx.Statement.ConnPool, cancelled("b1"))
	})
	if err != nil {
		log.Panic(err)
	}
	servers.Show("SELECT msg_tag, msg_key, body FROM rollbackd_outbox")
	// Output: booking.cancelled b1 {"booking":"b1"}
}
