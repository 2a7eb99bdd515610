package dedup_test

import (
	"context"
	"fmt"
	"log"
	"testing/fstest"

	"github.com/rollbackd/rollbackd/dedup"
)

// tables are what a handler writes to. A program of yours embeds them: //go:embed *.sql
var tables = fstest.MapFS{"0001_seat.sql": {Data: []byte(`-- oldest: 1
-- +goose Up
CREATE TABLE seat (id INT PRIMARY KEY, booking VARCHAR(40)) ENGINE=InnoDB;
`)}}

// A deployment makes the tables of the consumer log, and the handler's own beside them. It may run again.
func ExampleMigrate() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()

	ctx := context.Background()
	db, _, err := dedup.Open(ctx, servers.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	options := dedup.MigrateOptions{Extra: []dedup.MigrationSet{{Name: "seats", Files: tables}}}
	for range 2 {
		if err := dedup.Migrate(ctx, db, options); err != nil {
			log.Panic(err)
		}
	}
	steps, err := dedup.MigrationStatus(ctx, db, options)
	if err != nil {
		log.Panic(err)
	}
	for _, s := range steps {
		fmt.Println(s.Set, s.Version, s.Name, s.Applied)
	}
	servers.Show("SELECT COUNT(*) FROM seat")
	// Output:
	// log 1 0001_consumer_log.sql true
	// log 2 0002_schema_id.sql true
	// log 3 0003_readable.sql true
	// log 4 0004_desk.sql true
	// log 5 0005_due.sql true
	// log 6 0006_minute.sql true
	// seats 1 0001_seat.sql true
	// 0
}
