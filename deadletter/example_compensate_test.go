package deadletter_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// pager is a Notifier: it calls somebody.
type pager struct{ call func(text string) error }

// Notify gets new letters; what it returns an error for comes again.
func (p pager) Notify(_ context.Context, letters []deadletter.Letter) error {
	return p.call(fmt.Sprintf("%d new dead letters, the first one %s: %s", len(letters), letters[0].Key,
		letters[0].Reason))
}

// One process of the fleet replays letters whose reason may pass, and calls somebody about new ones. A consumer made by
// Open does this by itself when its Config has CompensateAfter and Notifier.
func ExampleLetters_Compensate() {
	servers := exampleServers() // a program of yours says os.Getenv where this says servers
	defer servers.Close()
	servers.Dead("seats.free", "booking-1")

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	db, _, err := dedup.Open(ctx, servers.MySQLDSN, dedup.OpenOptions{})
	if err != nil {
		log.Panic(err)
	}
	pool, err := db.DB()
	if err != nil {
		log.Panic(err)
	}
	defer pool.Close()
	d := consumer.Defaults()
	records, err := dedup.NewLog(db, dedup.LogOptions{
		Table: d.LogTable, Lease: d.Lease, Delays: d.RetryDelays, MaxAttempts: d.MaxAttempts,
	})
	if err != nil {
		log.Panic(err)
	}
	letters, err := deadletter.New(deadletter.Options{
		Records: records, AMQPURLs: []string{servers.AMQPURL}, Name: "seats",
		Group: "seats.free", Queue: "seats.free", KeyFrom: d.KeyFrom, Retention: d.LogRetention, MaxReplays: d.MaxReplays,
	})
	if err != nil {
		log.Panic(err)
	}
	records.Campaign(ctx, "seats.free", slog.Default(), func(ctx context.Context) {
		err := letters.Compensate(ctx, deadletter.CompensateOptions{
			After:           15 * time.Minute,
			VisibilityDelay: time.Millisecond, // the default, 30s, is longer than any transaction
			Notifier: pager{func(text string) error {
				fmt.Println(text)
				stop() // a program of yours goes on
				return nil
			}},
		})
		if err != nil { // the options are wrong
			log.Panic(err)
		}
	})
	// Output:
	// 1 new dead letters, the first one booking-1: permanent
}
