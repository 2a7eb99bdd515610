// Package poll waits, in tests and runs, for what nobody tells: it asks again and again. Nothing of the product may
// live here.
package poll

import (
	"context"
	"testing"
	"time"
)

// During asks until the answer is yes or ctx ends, for d at most, and reports whether it was. The last question comes
// after d: a machine that stood still meanwhile has asked too seldom. It rests between two questions, however long they
// take, and longer the longer it waits, up to five times rest: whoever waits must not keep the servers busy.
func During(ctx context.Context, d, rest time.Duration, yes func() bool) bool {
	late, began := time.NewTimer(d), time.Now()
	defer late.Stop()
	for !yes() {
		select {
		case <-time.After(min(max(rest, time.Since(began)/10), 5*rest)):
		case <-late.C:
			return yes()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Within asks every 20 to 100 ms until the answer is yes, for d at most, and reports whether it was.
func Within(d time.Duration, yes func() bool) bool {
	return During(context.Background(), d, 20*time.Millisecond, yes)
}

// Until asks until the answer is yes, and fails the test when that takes over a minute.
func Until(t testing.TB, what string, yes func() bool) {
	t.Helper()
	if !Within(time.Minute, yes) {
		t.Fatalf("still not after a minute: %s", what)
	}
}

// IsClosed reports whether a channel is closed that nobody sends to.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Receive waits for a value, or for the end of what would send it, and fails the test when that takes over a minute.
func Receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("still not after a minute: %s", what)
	}
	return v
}
