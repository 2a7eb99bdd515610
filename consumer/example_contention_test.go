package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer"
)

// read is the version that a handler has read before; the first is old.
var read atomic.Int64

// moveSeat writes only what it has read. That somebody was faster is nobody's failure: all is tried again.
func moveSeat(_ context.Context, tx *gorm.DB, _ consumer.Message) error {
	moved := tx.Exec("UPDATE seat SET version = version + 1 WHERE version = ?", read.Add(1))
	if moved.Error == nil && moved.RowsAffected == 0 {
		return consumer.Contention(errors.New("the seat was moved meanwhile"))
	}
	return moved.Error
}

// Two transactions met, although no statement failed.
func ExampleContention() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Exec("CREATE TABLE seat (version INT NOT NULL)")
	servers.Exec("INSERT INTO seat VALUES (2)")
	servers.Publish("seats.move", "booking-1", "{}")

	ctx, ended := servers.Until(1)
	err := consumer.Run(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.move", Migrate: true,
		Observe: func(e consumer.Ended) { fmt.Println(e.Key, e.Outcome); ended() },
	}, consumer.Each(moveSeat))
	if err != nil {
		log.Panic(err)
	}
	// Output: booking-1 applied
}
