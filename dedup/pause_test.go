package dedup

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestOfManyWhoPauseAtOnceOneDoes(t *testing.T) {
	t.Parallel()
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
	if done.Load() != 1 || refused.Load() != 19 {
		t.Errorf("%d paused, %d were refused; want 1 and 19", done.Load(), refused.Load())
	}
}

func TestAPauseIsReplacedOrEndedOnlyByWhoHasSeenIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	set := func(id string, lasts time.Duration, instead string) error {
		_, err := w.log.SetPause(t.Context(), w.pool, "g", "q", Pause{ID: id, By: "anna", Why: "w"}, lasts, instead)
		return err
	}
	want := func(id string) {
		t.Helper()
		p, err := w.log.Paused(t.Context(), "g", "q")
		if err != nil || p.ID != id || (p.Left > 0) != (id != "") {
			t.Errorf("paused: %+v, %v; want %q", p, err, id)
		}
	}
	// given a pause
	if err := set("one", time.Hour, ""); err != nil {
		t.Fatal(err)
	}
	want("one")
	if p, err := w.log.Paused(t.Context(), "g", "another"); err != nil || p.Left > 0 {
		t.Errorf("another queue is paused: %+v, %v", p, err)
	}
	// when it is replaced or ended by who has seen another, then it stands
	if err := set("two", time.Hour, "none"); !errors.Is(err, ErrPaused) {
		t.Errorf("replaced by who had seen none: %v", err)
	}
	if _, err := w.log.EndPause(t.Context(), w.pool, "g", "q", "none"); !errors.Is(err, ErrNotPaused) {
		t.Errorf("ended by who had seen none: %v", err)
	}
	want("one")
	// when by who has seen it, then it is
	if err := set("two", time.Hour, "one"); err != nil {
		t.Error(err)
	}
	want("two")
	if _, err := w.log.EndPause(t.Context(), w.pool, "g", "q", "two"); err != nil {
		t.Error(err)
	}
	want("")
	// when its time is over, then there is none, and anybody may pause anew
	if err := set("three", time.Microsecond, ""); err != nil {
		t.Error(err)
	}
	want("")
	long := Pause{ID: "four", By: strings.Repeat("<", 500), Why: strings.Repeat("<é", 500)}
	if _, err := w.log.SetPause(t.Context(), w.pool, "g", "q", long, time.Hour, ""); err != nil {
		t.Errorf("a long name and a long reason: %v", err)
	}
	want("four")
}
