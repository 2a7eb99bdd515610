package deadletter_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/rollbackd/rollbackd/deadletter"
	"github.com/rollbackd/rollbackd/dedup"
)

// pager is a Compensator: it calls somebody.
type pager struct{ call func(text string) error }

// Compensate is told of new letters; what it returns an error for comes again.
func (p pager) Compensate(_ context.Context, letters []deadletter.Letter) error {
	return p.call(fmt.Sprintf("%d new dead letters, the first one %s: %s", len(letters), letters[0].Key, letters[0].Reason))
}

// One process of the fleet replays letters whose reason may pass, and calls somebody about new ones.
func ExampleLetters_Compensate() {
	keep := func(ctx context.Context, records *dedup.Log, letters *deadletter.Letters, log *slog.Logger) {
		records.Lead(ctx, "seats", log, func(ctx context.Context) {
			err := letters.Compensate(ctx, deadletter.CompensateOptions{
				After: 15 * time.Minute, Logger: log,
				Tell: pager{func(text string) error {
					fmt.Println(text)
					return nil
				}},
			})
			if err != nil { // the options are wrong
				log.Error("compensation", "err", err)
			}
		})
	}
	_ = keep // in a goroutine beside the consumer, with the records and letters of its group
}
