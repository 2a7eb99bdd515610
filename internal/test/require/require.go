// Package require ends a test whose arrangement failed, at the line that could not be done. Nothing of the product may
// live here.
package require

import (
	"errors"
	"fmt"
)

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

// Is ends the test unless got is want; what says of what, and may have verbs of Printf for args.
func Is[T comparable](t Test, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Fatal(fmt.Sprintf(what, args...)+":", got, "want", want)
	}
}

// All is Get for what returns an error for each of many.
func All[T any](v T, errs []error) func(Test) T { return Get(v, errors.Join(errs...)) }

// That ends the test unless it is so.
func That(t Test, so bool, otherwise string, args ...any) {
	t.Helper()
	if !so {
		t.Fatal(fmt.Sprintf(otherwise, args...))
	}
}

// First is Get for what also returns something that nobody asks for.
func First[T, U any](v T, _ U, err error) func(Test) T { return Get(v, err) }
