package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/dedup"
	"github.com/rollbackd/rollbackd/internal/test/assert"
	"github.com/rollbackd/rollbackd/internal/test/require"
)

// saying is a message of which only the body matters.
type saying struct {
	body   string
	values Values
}

func (s *saying) Said() (dedup.Identity, []byte, *Values) {
	return dedup.Identity{}, []byte(s.body), &s.values
}

func TestABodyNamesWhatStandsInItsFields(t *testing.T) {
	want := named(&saying{body: `{"sku":7,"lines":[{"qty":1}]}`})
	for body, same := range map[string]int{
		`{"sku":7,"lines":[{"qty":1}]}`:    3, // the message itself is the first, of all here
		`{"lines":[[],{"qty":1}],"sku":7}`: 3,
		`{"sku":7,"lines":[{"qty":2}]}`:    2,
		`{"qty":7,"sku":1}`:                1,
		`{"sku":7,"lines":[{"qty":1`:       3, // as far as it can be read
		`{"sku":7,]`:                       2,
		`{"sku":null,"a":true,"b":{}}`:     1,
		`no JSON`:                          1,
		``:                                 1,
	} {
		got := 0
		for _, v := range named(&saying{body: body}) {
			if slices.Contains(want, v) {
				got++
			}
		}
		assert.Is(t, got, same, "%s names of the same", body)
	}
}

// Given an obstacle, when large bodies full of different values are applied, or wait in vain, then no more is kept of
// them than has its place.
func TestWhatIsKnownOfObstaclesIsBounded(t *testing.T) {
	o := Contention[*saying]{Memory: 20 * time.Second, Size: 1000}
	var all []*saying
	for i := range 600 { // more than passed can hold
		var body strings.Builder
		body.WriteByte('[')
		for n := range 2 * maxNamed {
			fmt.Fprintf(&body, "%d,", 1_000_000+i*1000+n)
		}
		all = append(all, &saying{body: body.String()})
	}
	deep := &saying{body: strings.Repeat("[", 1<<20)}
	o.meet([]*saying{deep}, time.Second)
	assert.Is(t, len(deep.values), 1, "nothing names values")
	for _, it := range all {
		o.meet([]*saying{it}, time.Second)
		require.Is(t, len(it.values), maxNamed, "a large body names values")
		require.That(t, len(o.marks) <= maxMarks, "%d values are marked, want %d at most", len(o.marks), maxMarks)
	}
	o.pass(all, nil, time.Millisecond)
	assert.AtMost(t, len(o.passed), maxPassed, "values have passed")
	assert.That(t, all[0].values == nil, "what is applied still has its values")
}

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
		assert.That(t, b.Stops(), "it does not pause")
		d, _ := b.Pause()
		assert.That(t, !b.Stops(), "it pauses before a probe")
		got = append(got, d)
	}
	for range 4 {
		probe()
	}
	b.Note(true, false, nil)
	d, _ := b.Pause()
	assert.Is(t, d, 0, "a message is applied: the pause")
	probe()
	b.HoldLetters(time.Hour)
	probe()
	want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, time.Second, time.Hour}
	assert.Equal(t, got, want, "pauses")
	off := &Breaker{Limit: dedup.LetterLimit{}, Now: time.Now}
	off.Note(false, true, messagesFrom(1, 1000))
	assert.That(t, !off.Spaces(), "it is off, and brakes")
}
