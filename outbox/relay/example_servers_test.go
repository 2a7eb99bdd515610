package relay_test

import (
	"context"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/example"
	"github.com/rollbackd/rollbackd/outbox"
)

// exampleServers are a RabbitMQ and a MySQL for one example with the table of the outbox, and a handle on it.
func exampleServers() (*example.Servers, *gorm.DB) {
	servers := example.All()
	db, _, err := dedup.Open(context.Background(), servers.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	servers.Closes(db)
	if err := outbox.Migrate(context.Background(), db); err != nil {
		log.Panic(err)
	}
	return servers, db
}
