package stock_test

import (
	"context"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/example"
	"github.com/rollbackd/rollbackd/internal/test/must"
)

// exampleServers are a MySQL for one example, with the tables that `rollbackd migrate` makes, and 10 pieces of sku
// 1001.
func exampleServers() *example.Servers {
	servers := example.MySQL()
	db := servers.Opened(dedup.Open(context.Background(), servers.MySQLDSN, dedup.OpenOptions{}))
	must.OK(dedup.Migrate(context.Background(), db, withStock()))
	servers.Exec("INSERT INTO stock (sku_id, amount) VALUES (1001, 10)")
	return servers
}
