package outbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/outbox"
)

// parked are messages that nobody sends until a person says so.
var parked = outbox.Filter{State: outbox.Parked}

// A person looks at what RabbitMQ has not taken for a day, has one message sent after all, and drops the other.
func ExampleRows_List() {
	servers, db := exampleServers() // a schema with the table of the outbox
	defer servers.Close()
	servers.Exec("INSERT INTO rollbackd_outbox (msg_tag, msg_key, body, next_at, failed_at, parked_at, reason) VALUES" +
		" ('booking.cancelled', 'b1', '{}', '9999-12-31', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'no queue takes it')," +
		" ('booking.canceled', 'b1', '{}', '9999-12-31', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'no queue takes it')")

	ctx := context.Background()
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	rows := outbox.Rows{DB: pool}
	page, _, err := rows.List(ctx, parked, "", 100)
	for _, r := range page {
		fmt.Println(r.Tag, r.Key, r.Reason)
	}
	sent, err1 := rows.Retry(ctx, outbox.Filter{Tag: "booking.cancelled"}, outbox.Change{})
	gone, err2 := rows.Drop(ctx, parked, outbox.Change{})
	left, err3 := rows.Show(ctx, "", "b1")
	all, err4 := rows.Survey(ctx)
	for _, err := range []error{err, err1, err2, err3, err4} {
		if err != nil {
			log.Panic(err)
		}
	}
	fmt.Println(sent.Changed, gone.Changed, left[0].State, all.Due, all.Parked)
	// Unordered output:
	// booking.canceled b1 no queue takes it
	// booking.cancelled b1 no queue takes it
	// 1 1 due 1 0
}
