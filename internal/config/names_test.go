package config

import (
	"testing"
)

func TestEdits(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"abc", "abc", 0}, {"abc", "", 3}, {"abc", "abd", 1}, {"abc", "acb", 2}, {"abc", "bc", 1},
		{"bc", "abc", 1}, {"kitten", "sitting", 3},
	} {
		if got := edits(tc.a, tc.b); got != tc.want {
			t.Errorf("edits(%q, %q) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
