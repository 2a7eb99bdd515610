package consumer

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/rabbit"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given a letter that a full queue refuses, when its row was moved and a connection ends with the copy that comes back
// in its place, then no queue is said to refuse that copy, because none has; and when its queue does, that is said.
func TestACopyThatNobodyRefusedIsSaidToBeRefusedByNoQueue(t *testing.T) {
	t.Parallel()
	health := healthOf(slog.New(slog.DiscardHandler))
	l := &worker{name: "0", c: &engine{holding: newHolding(health), cfg: Config{Queue: "q"}}}
	says := func(want ...string) {
		t.Helper()
		l.say(t.Context())
		assert.Equal(t, health.state(false).Degraded, want, "degraded")
	}
	full := fmt.Errorf("full: %w", rabbit.ErrNacked)
	letter := &item{copy: publication{refused: full}}
	letter.settlement = settlement{by: byDeadLetter}
	letter.id.Identity = dedup.Identity{Group: "g", Tag: "t", Key: "k"}
	said := func(queue string) string { _, advice := l.amiss(letter); return queue + ": " + advice.Error() }

	l.held.items = []*item{letter}
	says(said("q.dead"))
	if !l.c.holding.has(letter.id.Identity) || l.c.holding.size() != 1 {
		t.Error("the letter is not held")
	}

	letter.copy.refused, letter.settlement = nil, settlement{by: byRetry, delay: time.Second} // whose connection has ended
	says()

	letter.copy.refused = errors.Join(full)
	says(said("q.retry.1s"))

	l.held.items = nil
	says()
	if n := l.c.holding.size(); n != 0 || len(l.c.holding.lanes) != 0 || l.c.holding.has(letter.id.Identity) {
		t.Errorf("%d deliveries held by %v", n, l.c.holding.lanes)
	}
}
