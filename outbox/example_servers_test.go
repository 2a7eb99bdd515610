package outbox_test

import (
	"context"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/example"
	"github.com/rollbackd/rollbackd/internal/test/must"
	"github.com/rollbackd/rollbackd/outbox"
)

// exampleServers are a MySQL for one example with the table of the outbox, and a handle on it.
func exampleServers() (*example.Servers, *gorm.DB) {
	servers := example.MySQL()
	db := servers.Opened(dedup.Open(context.Background(), servers.MySQLDSN, dedup.OpenOptions{}))
	must.OK(outbox.Migrate(context.Background(), db))
	return servers, db
}
