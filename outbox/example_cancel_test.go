package outbox_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/outbox"
)

// timeout is sent when a booking is unpaid after half an hour.
var timeout = outbox.Message{Tag: "booking.timeout", Key: "b1", Value: "unpaid", Delay: 30 * time.Minute}

// A booking is paid before its timeout: the message that waits is taken back in the payment's transaction. The second
// payment is too late to take anything back.
func ExampleCancel() {
	servers, db := exampleServers() // a schema with the table of the outbox
	defer servers.Close()

	ctx := context.Background()
	err := db.Transaction(func(tx *gorm.DB) error { return outbox.Put(ctx, tx.Statement.ConnPool, timeout) })
	if err != nil {
		log.Panic(err)
	}
	for range 2 {
		err := db.Transaction(func(tx *gorm.DB) error {
			inTime, err := outbox.Cancel(ctx, tx.Statement.ConnPool, timeout.Tag, timeout.Key)
			fmt.Println("in time:", inTime)
			return err
		})
		if err != nil {
			log.Panic(err)
		}
	}
	// Output:
	// in time: true
	// in time: false
}
