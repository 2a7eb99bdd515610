package lock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rollbackd/rollbackd/lock"
)

// names are what a batch locks, in one round trip.
var names = []lock.Name{lock.NameOf("the schema's UUID", "seats", "seats.free", "booking-1")}

// A lock over Redis, as consumer.New takes it in its Options.
func ExampleNewRedis() {
	url, end := exampleServer()
	defer end()

	ctx := context.Background()
	client, err := lock.OpenRedis(url, lock.RedisOptions{})
	if err != nil {
		log.Panic(err)
	}
	defer client.Close()
	locks, err := lock.NewRedis(client, lock.Options{})
	if err != nil {
		log.Panic(err)
	}
	for _, token := range []string{"one worker", "another"} {
		held, err := locks.Lock(ctx, token, names)
		if err != nil {
			log.Panic(err)
		}
		fmt.Println(token+":", held[0].Hold)
	}
	fmt.Println(locks.Release(ctx, "one worker", names))
	// Output:
	// one worker: mine
	// another: held
	// <nil>
}
