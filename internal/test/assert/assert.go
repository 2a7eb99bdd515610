// Package assert fails a test that goes on. Nothing of the product may live here.
package assert

import (
	"fmt"
	"testing"
)

// Is fails the test unless got is want; what says of what, and may have verbs of Printf for args.
func Is[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got == want {
		return
	}
	verb := "%s: %v, want %v"
	if _, text := any(want).(string); text {
		verb = "%s: %q, want %q"
	}
	t.Errorf(verb, fmt.Sprintf(what, args...), got, want)
}
