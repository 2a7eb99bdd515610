package admission

import (
	"fmt"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
)

// messagesFrom are the identities of messages from one number to another.
func messagesFrom(first, last int) (all []dedup.Identity) {
	for i := first; i <= last; i++ {
		all = append(all, dedup.Identity{Group: "g", Tag: "t", Key: fmt.Sprint(i)})
	}
	return all
}

func TestAttemptsAreSpacedOutWhenTooManyMessagesFailAndNoneIsApplied(t *testing.T) {
	type step struct {
		after   time.Duration
		applied bool
		failed  []dedup.Identity
		spaced  bool
	}
	const window = time.Minute
	for name, steps := range map[string][]step{
		"up to the limit nothing happens": {{0, false, messagesFrom(1, 100), false}, {0, false, nil, false}},
		"one more is too many": {
			{0, false, messagesFrom(1, 60), false}, {time.Second, false, messagesFrom(61, 101), true},
		},
		"a message that fails again is the same message": {
			{0, false, messagesFrom(1, 100), false}, {time.Second, false, messagesFrom(1, 100), false},
		},
		"one that is applied is enough": {
			{0, false, messagesFrom(1, 100), false}, {0, true, messagesFrom(101, 900), false},
			{0, false, messagesFrom(901, 1000), false},
		},
		"they are too few for the window": {
			{0, false, messagesFrom(1, 100), false}, {window + 1, false, messagesFrom(101, 200), false},
		},
		"it lasts until one is applied": {
			{0, false, messagesFrom(1, 101), true}, {time.Hour, false, messagesFrom(1, 1), true}, {0, true, nil, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			limit := dedup.LetterLimit{Most: 100, Window: window, Pause: time.Hour}
			b := &Breaker{Limit: limit, Now: func() time.Time { return now }}
			for i, s := range steps {
				now = now.Add(s.after)
				b.Note(s.applied, len(s.failed) > 0, s.failed)
				assert.Is(t, b.Spaces(), s.spaced, "step %d: spaced out", i+1)
			}
		})
	}
}

func TestThePausesBetweenProbesGrowUntilOneIsApplied(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	limit := dedup.LetterLimit{Most: 1, Window: time.Minute, Pause: 5 * time.Second}
	b := &Breaker{Limit: limit, Now: func() time.Time { return now }}
	var got []time.Duration
	probe := func() {
		b.Note(false, true, messagesFrom(1, 2))
		if !b.Stops() {
			t.Error("it does not pause")
		}
		d, _ := b.Pause()
		if b.Stops() {
			t.Error("it pauses before a probe")
		}
		got = append(got, d)
	}
	for range 4 {
		probe()
	}
	b.Note(true, false, nil)
	if d, _ := b.Pause(); d != 0 {
		t.Errorf("a message is applied, and it pauses for %v", d)
	}
	probe()
	b.HoldLetters(time.Hour)
	probe()
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, time.Second, time.Hour}
	assert.Equal(t, got, want, "pauses")
	off := &Breaker{Limit: dedup.LetterLimit{}, Now: time.Now}
	if off.Note(false, true, messagesFrom(1, 1000)); off.Spaces() {
		t.Error("it is off, and brakes")
	}
}
