package dedup

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestOfManyWhoPauseAtOnceOneDoes(t *testing.T) {
	w := newWorld(t)
	var done, refused atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := w.log.SetPause(t.Context(), w.pool, "g", "q", Pause{ID: "p", By: "anna", Why: "w"}, time.Hour, "")
			switch {
			case err == nil:
				done.Add(1)
			case errors.Is(err, ErrPaused):
				refused.Add(1)
			default:
				t.Errorf("SetPause: %v", err)
			}
		})
	}
	wg.Wait()
	assert.That(t, done.Load() == 1 && refused.Load() == 19, "%d paused, %d were refused; want 1 and 19", done.Load(),
		refused.Load())
}

func TestAPauseIsReplacedOrEndedOnlyByWhoHasSeenIt(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("<é", 500)
	set := func(id string, lasts time.Duration, instead string) error {
		_, err := w.log.SetPause(t.Context(), w.pool, "g", "q", Pause{ID: id, By: long, Why: long}, lasts, instead)
		return err
	}
	end := func(id string) error {
		_, err := w.log.EndPause(t.Context(), w.pool, "g", "q", id)
		return err
	}
	stands := func(what string, err, want error, id string) {
		t.Helper()
		assert.Error(t, err, want, what)
		p, err := w.log.Paused(t.Context(), "g", "q")
		assert.That(t, err == nil && p.ID == id && (p.Left > 0) == (id != ""), "%s: %+v, %v; want %q", what, p, err, id)
	}
	stands("paused", set("one", time.Hour, ""), nil, "one")
	stands("replaced by who had seen none", set("two", time.Hour, "none"), ErrPaused, "one")
	stands("ended by who had seen none", end("none"), ErrNotPaused, "one")
	stands("replaced", set("two", time.Hour, "one"), nil, "two")
	stands("ended", end("two"), nil, "")
	stands("over at once", set("three", time.Microsecond, ""), nil, "")
	stands("anew", set("four", time.Hour, ""), nil, "four")
	p, err := w.log.Paused(t.Context(), "g", "another")
	assert.That(t, err == nil && p.Left <= 0, "another queue is paused: %+v, %v", p, err)
}
