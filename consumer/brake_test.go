package consumer

import (
	"testing"
	"time"
)

func TestTheBrakeTripsOnABrokenDeploymentOnly(t *testing.T) {
	type step struct {
		after           time.Duration
		others, letters int
		want            int // letters that may be published
	}
	for name, steps := range map[string][]step{
		"up to the limit nothing happens": {{0, 0, 100, 100}},
		"over the limit only the limit passes": {
			{0, 0, 60, 60}, {time.Second, 0, 60, 40}, {time.Second, 0, 60, 0},
		},
		"many letters among more successes are bad messages": {{0, 1000, 400, 400}, {0, 0, 300, 300}},
		"exactly half is not more than half":                 {{0, 200, 200, 200}},
		"the window forgets": {
			{0, 0, 100, 100}, {61 * time.Second, 0, 100, 100}, {time.Second, 0, 1, 0},
		},
		"what was held back is not counted": {{0, 0, 500, 100}, {61 * time.Second, 0, 100, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			b := newBrake(100, time.Minute, func() time.Time { return now })
			for i, s := range steps {
				now = now.Add(s.after)
				if got := b.allow(s.others, s.letters); got != s.want {
					t.Errorf("step %d: %d letters may pass, want %d", i+1, got, s.want)
				}
			}
		})
	}
}

func TestTheBrakeCanBeOffAndForgetsAfterAPause(t *testing.T) {
	off := newBrake(0, 0, time.Now)
	if got := off.allow(0, 1_000_000); got != 1_000_000 {
		t.Errorf("without a limit %d letters pass, want all", got)
	}
	b := newBrake(10, time.Hour, time.Now)
	b.allow(0, 10)
	b.reset()
	if got := b.allow(0, 10); got != 10 {
		t.Errorf("after a reset %d letters pass, want 10", got)
	}
}
