package consumer_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/consumer"
	"github.com/rollbackd/rollbackd/dedup"
)

// Given the end of a delivery, when a program that observes prints or logs it, then the line says how it ended, not
// only whose end it is; what a cause holds stays in its line.
func TestTheEndOfADeliveryIsPrintedWithItsOutcome(t *testing.T) {
	t.Parallel()
	seat := dedup.Identity{Group: "seats", Tag: "release", Key: "b1"}
	dead := consumer.Ended{
		Identity: seat, Outcome: consumer.DeadLettered, Attempt: 2, Reason: dedup.ReasonPermanent,
		Cause: "nobody has\nthis booking", Took: time.Second,
	}
	for _, c := range []struct {
		end             consumer.Ended
		printed, logged string
	}{
		{
			dead, `seats/release/"b1" dead_lettered, attempt 2, permanent: "nobody has\nthis booking"`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=dead_lettered end.attempt=2 ` +
				`end.reason=permanent end.err="nobody has\nthis booking" end.took=1s`,
		},
		{
			consumer.Ended{Identity: seat, Outcome: consumer.Applied, Took: time.Second}, `seats/release/"b1" applied`,
			`end.message.group=seats end.message.tag=release end.message.key=b1 end.outcome=applied end.took=1s`,
		},
	} {
		if got := fmt.Sprintf("%+v", c.end); got != c.printed {
			t.Errorf("printed: %s\nwant:    %s", got, c.printed)
		}
		var line strings.Builder
		slog.New(slog.NewTextHandler(&line, nil)).Info("ended", "end", c.end)
		if _, got, _ := strings.Cut(strings.TrimSuffix(line.String(), "\n"), "msg=ended "); got != c.logged {
			t.Errorf("logged: %s\nwant:   %s", got, c.logged)
		}
	}
}
