package dedup

import (
	"errors"
	"testing"
	"time"

	"github.com/rollbackd/rollbackd/internal/test/assert"
)

func TestAClockThatJumpsIsNotBelieved(t *testing.T) {
	t.Parallel()
	made := time.Now()
	for name, readings := range map[string][]struct {
		steady         time.Duration // since the process began
		database, here time.Duration // what the clocks are ahead of it
		agree          bool
	}{
		"in step, and a little apart": {{0, 0, 0, true}, {time.Minute, 50 * time.Second, 0, true}},
		"the database's jumps and comes back": {
			{0, 0, 0, true}, {time.Second, 960 * time.Hour, 0, false}, {11 * time.Second, 0, 0, true},
		},
		"the process's jumps and comes back": {
			{0, 0, 0, true}, {time.Second, 0, -2 * time.Minute, false}, {11 * time.Second, 0, 0, true},
		},
		"both jump and come back": {
			{0, 0, 0, true}, {time.Second, 960 * time.Hour, 960 * time.Hour, false}, {11 * time.Second, 0, 0, true},
			{time.Minute, 960 * time.Hour, 960 * time.Hour, false},
			{time.Hour + 30*time.Second, 960 * time.Hour, 960 * time.Hour, false},
		},
		"the machine slept": {
			{time.Minute, 0, 0, true}, {2 * time.Minute, 8 * time.Hour, 8 * time.Hour, false},
			{time.Hour, 8 * time.Hour, 8 * time.Hour, false}, {2 * time.Hour, 8 * time.Hour, 8 * time.Hour, true},
			{3 * time.Hour, 8 * time.Hour, 8 * time.Hour, true}, {4 * time.Hour, 0, 0, false},
		},
		"the process's was set right after it began": {
			{0, time.Hour, 0, false}, {time.Minute, time.Hour, time.Hour, true}, {time.Hour, time.Hour, time.Hour, true},
		},
	} {
		c := &clocks{made: made}
		for i, r := range readings {
			at := made.Round(0).Add(r.steady)
			err := c.judge(at.Add(r.database), at.Add(r.here), 0, r.steady)
			assert.That(t, r.agree == (err == nil) && (r.agree || errors.Is(err, ErrClocks)),
				"%s: reading %d: %v, want agreement %v", name, i, err, r.agree)
		}
	}
}
