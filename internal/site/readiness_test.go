package site

import (
	"testing"
	"time"
)

func TestALaneIsStuckWhenNoServerCanBeTheReason(t *testing.T) {
	for _, c := range []struct {
		still, timeout time.Duration
		stuck          bool
	}{
		{0, 10 * time.Second, false},
		{30 * time.Second, 10 * time.Second, false},
		{31 * time.Second, 10 * time.Second, true},
		{29 * time.Second, 100 * time.Millisecond, false}, // a broker that gives no answer is waited for so long
		{31 * time.Second, 100 * time.Millisecond, true},
		{89 * time.Second, 30 * time.Second, false},
	} {
		if got := stuck(c.still, c.timeout); got != "" != c.stuck {
			t.Errorf("still for %v with a handler timeout of %v: %q, want stuck %v", c.still, c.timeout, got, c.stuck)
		}
	}
}
