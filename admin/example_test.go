package admin_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/admin"
	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/internal/test/example/producer"
)

// A program consumes, and shows its pages below /rollbacks of its own server.
func ExampleOpen() {
	servers := producer.All() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Publish("seats.free", "booking-1", "{}")

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	applied := make(chan struct{}, 1)
	c, err := consumer.Open(ctx, consumer.Config{
		MySQLDSN: servers.MySQLDSN, AMQPURLs: []string{servers.AMQPURL}, Queue: "seats.free", Migrate: true,
		Observe: func(consumer.Ended) { applied <- struct{}{} },
	}, consumer.Each(func(context.Context, *gorm.DB, consumer.Message) error { return nil }))
	if err != nil {
		log.Panic(err)
	}
	site, err := admin.Open(ctx, admin.Options{
		Prefix: "/rollbacks", Token: func() string { return os.Getenv("ADMIN_TOKEN") },
	}, c)
	if err != nil {
		log.Panic(err)
	}
	mux := http.NewServeMux() // that of the program
	mux.Handle("/rollbacks/", site)
	server := httptest.NewServer(mux)

	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	wg.Go(func() { _ = site.Run(ctx) }) // does what is asked for on the pages
	<-applied
	ready, err := http.Get(server.URL + "/rollbacks/readyz")
	if err != nil {
		log.Panic(err)
	}
	ready.Body.Close()
	fmt.Println(ready.Status)
	stop() // a daemon stops at a signal
	wg.Wait()
	server.Close()
	// Output:
	// 200 OK
}
