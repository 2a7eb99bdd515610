package dedup

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// letterLimit is a hundred letters an hour, and a pause of half an hour.
func letterLimit() LetterLimit {
	return LetterLimit{Group: "g", Queue: "q", Most: 100, Window: time.Hour, Pause: 30 * time.Minute}
}

// later moves the window of a queue into the past, as if so much time had gone by.
func (w *world) later(limit LetterLimit, d time.Duration) {
	w.t.Helper()
	var n letterNote
	name := w.log.noteName("letters", limit.Group, limit.Queue)
	stored, _, err := w.log.readNote(w.t.Context(), w.pool, name, &n)
	if err != nil || stored == nil {
		w.t.Fatal(err)
	}
	n.Since -= d.Microseconds()
	if n.Until > 0 {
		n.Until -= d.Microseconds()
	}
	require.Get(w.log.writeNote(w.t.Context(), w.pool, name, stored, n))(w.t)
}

func TestOfManyWhoReserveLettersAtOnceTheLimitIsShared(t *testing.T) {
	w := newWorld(t)
	var sum atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				got := require.First(w.log.ReserveLetters(t.Context(), letterLimit(), 7))(t)
				sum.Add(int64(got))
			}
		})
	}
	wg.Wait()
	assert.Is(t, sum.Load(), 100, "letters were given in all")
}

// Given a limit of 100 letters an hour, when letters are asked for as time goes by, then a window ends with its hour,
// or with its pause once more was asked for, however old it becomes; as many letters as messages were applied are
// within the limit.
func TestAWindowOfLettersBeginsAnewWhenItIsOverOrItsPause(t *testing.T) {
	w := newWorld(t)
	limit := letterLimit()
	apply := func(prefix string, n int) {
		w.put(aged(prefix, n, Success, 0)...)
	}
	steps := []struct {
		after    time.Duration // negative: the clock was set back
		do       func()
		ask, get int
		holds    time.Duration
	}{
		{0, nil, 60, 60, 0},
		{59 * time.Minute, nil, 40, 40, 0},
		{time.Minute, nil, 100, 100, 0},
		{0, nil, 1, 0, 30 * time.Minute},
		{20 * time.Minute, func() { limit.Window = time.Minute }, 1, 0, 10 * time.Minute},
		{10 * time.Minute, nil, 101, 100, 30 * time.Minute},
		{-48 * time.Hour, nil, 1, 1, 0},
		{48 * time.Hour, func() { limit = letterLimit(); apply("applied", 300) }, 250, 250, 0},
		{0, nil, 100, 50, 30 * time.Minute},
		{0, func() { apply("more", 100) }, 50, 50, 0}, // while it holds
		{2 * time.Hour, func() { // what was applied before the window counts no more
			w.exec("UPDATE consumer_log SET consumer_timestamp = consumer_timestamp - INTERVAL 2 HOUR")
		}, 101, 100, 30 * time.Minute},
		{0, func() { limit.Queue = "another" }, 100, 100, 0},
	}
	for i, s := range steps {
		if s.after != 0 {
			w.later(limit, s.after)
		}
		if s.do != nil {
			s.do()
		}
		got, holds, err := w.log.ReserveLetters(t.Context(), limit, s.ask)
		assert.That(t, err == nil && got == s.get && holds <= s.holds && holds >= s.holds-time.Minute,
			"step %d: of %d letters it got %d, for %v (%v); want %d, for %v", i, s.ask, got, holds, err, s.get, s.holds)
	}
}
