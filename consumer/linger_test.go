package consumer

import (
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// Given a batch with messages of a replay, then the next one waits longer for more, unless it waits for long, or not at
// all, anyway; and the one behind that waits as ever.
func TestABatchBehindAReplayWaitsLongerForMore(t *testing.T) {
	for usual, want := range map[time.Duration]time.Duration{
		0: 0, 2 * time.Millisecond: 20 * time.Millisecond, time.Second: time.Second,
	} {
		w := &worker{c: &engine{cfg: Config{BatchLinger: usual}}, reopened: true}
		assert.Is(t, w.linger(), want, "behind a replay")
		assert.Is(t, w.linger(), usual, "after that")
	}
}
