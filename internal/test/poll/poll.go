// Package poll waits, in tests, for what nobody tells: it asks again and again. Nothing of the product may live here.
package poll

import (
	"testing"
	"time"
)

// Within asks until the answer is yes, for d at most, and reports whether it was. It rests for 20 ms between two
// questions, however long they take: whoever waits must not keep the servers busy.
func Within(d time.Duration, yes func() bool) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	const rest = 20 * time.Millisecond
	for !yes() {
		select {
		case <-time.After(rest):
		case <-late.C:
			return false
		}
	}
	return true
}

// Until asks until the answer is yes, and fails the test when that takes over a minute.
func Until(t testing.TB, what string, yes func() bool) {
	t.Helper()
	if !Within(time.Minute, yes) {
		t.Fatalf("still not after a minute: %s", what)
	}
}
