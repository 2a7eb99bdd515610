package consumer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/rollbackd/rollbackd/consumer/internal/runner"
	"github.com/rollbackd/rollbackd/dedup"
)

// Given a handler that calls one of Each with messages of its own, when it does not return from one of these, then the
// engine takes no place among them for one among its own: it knows of its own messages alone.
func TestAnEachOfOtherMessagesIsNoPlaceAmongTheEngines(t *testing.T) {
	t.Parallel()
	r := &runner.Runner{Log: slog.New(slog.DiscardHandler), Tell: func(context.Context, error) {}}
	over := make(chan struct{})
	each := Each(func(_ context.Context, _ *gorm.DB, m Message) error {
		if m.Key == "third" {
			<-over
		}
		return nil
	})
	message := func(key string) Message { return Message{Identity: dedup.Identity{Key: key}} }
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	at, err := r.Run(ctx, calling{message("whole")}, func(ctx context.Context) error {
		defer close(ended)
		return each.Handle(ctx, &gorm.DB{Statement: &gorm.Statement{}}, []Message{message("first"), message("second"),
			message("third")})
	})
	if at != -1 || err == nil {
		t.Errorf("it was at %d (%v), want -1 and an error", at, err)
	}
	close(over)
	<-ended
}
