package stock_test

import (
	"context"
	"log"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/example"
)

// exampleServers are a MySQL for one example, with the tables that `rollbackd migrate` makes, and 10 pieces of sku
// 1001.
func exampleServers() *example.Servers {
	servers := example.MySQL()
	db, closeDB := openExample(servers.MySQLDSN)
	defer closeDB()
	if err := dedup.Migrate(context.Background(), db, withStock()); err != nil {
		log.Panic(err)
	}
	servers.Exec("INSERT INTO stock (sku_id, amount) VALUES (1001, 10)")
	return servers
}

func openExample(dsn string) (db *gorm.DB, closeDB func()) {
	db, _, err := dedup.Open(context.Background(), dsn, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	return db, func() { _ = pool.Close() }
}
