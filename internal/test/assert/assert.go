// Package assert fails a test that goes on. What is said of a value may have verbs of Printf for args. Nothing of the
// product may live here.
package assert

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Is fails the test unless got is want.
func Is[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	unless(t, got == want, got, want, what, args)
}

// That fails the test unless it is so.
func That(t testing.TB, so bool, otherwise string, args ...any) {
	t.Helper()
	if !so {
		t.Errorf(otherwise, args...)
	}
}

// AtMost fails the test if got is more than want.
func AtMost[T cmp.Ordered](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	unless(t, got <= want, got, want, what+", at most", args)
}

// AtLeast fails the test if got is less than want.
func AtLeast[T cmp.Ordered](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	unless(t, got >= want, got, want, what+", at least", args)
}

// Equal fails the test unless both lists are the same.
func Equal[T comparable](t testing.TB, got, want []T, what string, args ...any) {
	t.Helper()
	unless(t, slices.Equal(got, want), got, want, what, args)
}

// Has fails the test unless got holds want.
func Has(t testing.TB, got, want, what string, args ...any) {
	t.Helper()
	unless(t, strings.Contains(got, want), got, want, what, args)
}

// Error fails the test unless got is want, or wraps it.
func Error(t testing.TB, got, want error, what string, args ...any) {
	t.Helper()
	unless(t, errors.Is(got, want), got, want, what, args)
}

// OK fails the test if there is an error.
func OK(t testing.TB, err error, what ...any) {
	t.Helper()
	if err != nil {
		t.Error(append(what, err)...)
	}
}

func unless(t testing.TB, good bool, got, want any, what string, args []any) {
	t.Helper()
	if good {
		return
	}
	verb := "%s: %v, want %v"
	if _, text := want.(string); text {
		verb = "%s: %q, want %q"
	}
	t.Errorf(verb, fmt.Sprintf(what, args...), got, want)
}
