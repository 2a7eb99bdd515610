package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/outbox"
)

// noTable is what a schema without an outbox says.
var noTable = outbox.ErrSchema

// A deployment makes the table of the outbox, as `rollbackd migrate --outbox` does. It may run again.
func ExampleMigrate() {
	servers, db := exampleServers() // a schema with the table of the outbox
	defer servers.Close()

	ctx := context.Background()
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	if err := outbox.Migrate(ctx, db); err != nil {
		log.Panic(err)
	}
	fmt.Println(outbox.CheckSchema(ctx, pool))
	servers.Exec("DROP TABLE rollbackd_outbox")
	fmt.Println(errors.Is(outbox.CheckSchema(ctx, pool), noTable))
	// Output:
	// <nil>
	// true
}
