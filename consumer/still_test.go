package consumer

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// Given a lane in the middle of an attempt, when another waits with a message that must be attempted alone, then that
// one is not stuck, however long the attempt takes: whether it moves is for the clock of the other to say.
func TestALaneThatWaitsForTheAttemptsOfOthersIsNotStill(t *testing.T) {
	c := &engine{cfg: Config{Lanes: 1}, slots: semaphore.NewWeighted(2)}
	other := slot{worker: &worker{c: c, clock: &laneClock{}}}
	require.OK(t, other.take(t.Context(), false))
	defer other.end()
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	l := slot{worker: &worker{c: c, clock: &laneClock{}}}
	l.clock.tick()
	done := make(chan error)
	go func() { done <- l.take(ctx, true) }()
	late := time.After(10 * time.Second)
	for l.clock.at.Load() != 0 {
		select {
		case <-late:
			t.Error("it counts as still after 10s")
			cancel(stop)
			<-done
			return
		case <-time.After(time.Millisecond):
		}
	}
	cancel(stop)
	assert.Error(t, <-done, stop, "take")
}
