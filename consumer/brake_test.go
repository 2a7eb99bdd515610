package consumer

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
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
			b := newBreaker(Config{MaxDead: 100, MaxDeadWindow: window, BrakePause: time.Hour}, func() time.Time { return now })
			for i, s := range steps {
				now = now.Add(s.after)
				b.note(s.applied, len(s.failed) > 0, s.failed)
				if got := b.spaces(); got != s.spaced {
					t.Errorf("step %d: spaced out %v, want %v", i+1, got, s.spaced)
				}
			}
		})
	}
}

func TestThePausesBetweenProbesGrowUntilOneIsApplied(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	b := newBreaker(Config{MaxDead: 1, MaxDeadWindow: time.Minute, BrakePause: 5 * time.Second},
		func() time.Time { return now })
	var got []time.Duration
	probe := func() {
		b.note(false, true, messagesFrom(1, 2))
		if !b.stops() {
			t.Error("it does not pause")
		}
		d, _ := b.pause()
		if b.stops() {
			t.Error("it pauses before a probe")
		}
		got = append(got, d)
	}
	for range 4 {
		probe()
	}
	b.note(true, false, nil)
	if d, _ := b.pause(); d != 0 {
		t.Errorf("a message is applied, and it pauses for %v", d)
	}
	probe()
	b.holdLetters(time.Hour)
	probe()
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, time.Second, time.Hour}
	if !slices.Equal(got, want) {
		t.Errorf("pauses %v, want %v", got, want)
	}
	off := newBreaker(Config{}, time.Now)
	if off.note(false, true, messagesFrom(1, 1000)); off.spaces() {
		t.Error("it is off, and brakes")
	}
}

func TestAProbeAfterDeliveriesWereGivenBackHasOneInHand(t *testing.T) {
	s := &source{c: &engine{
		cfg: Config{Lanes: 4, BatchSize: 100, GiveBackAfter: time.Minute, HoldLimit: 3 * time.Minute},
		log: slog.New(slog.DiscardHandler),
	}}
	for i, want := range []halfOpen{
		{lanes: 1, size: 100, patience: time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 2 * time.Minute, probe: true},
		{lanes: 1, size: 1, patience: 3 * time.Minute, probe: true},
	} {
		if s.begin = probing(s.c, s.begin); s.begin != want {
			t.Errorf("probe %d is %+v, want %+v", i+1, s.begin, want)
		}
		s.after(t.Context(), errGiveBack, time.Second)
	}
}
