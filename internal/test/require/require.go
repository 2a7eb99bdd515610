// Package require ends a test whose arrangement failed, at the line that could not be done. Nothing of the product may
// live here.
package require

import "errors"

// Test is what ends: a [testing.TB], or a run of a property.
type Test interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test if there is an error.
func OK(t Test, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Get is OK for what also returns a value, which it hands on.
func Get[T any](v T, err error) func(Test) T {
	return func(t Test) T {
		t.Helper()
		OK(t, err)
		return v
	}
}
