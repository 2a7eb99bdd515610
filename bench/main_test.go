package main

import (
	"strings"
	"testing"
)

func TestDefaultsAreAResultAndTrialsAreNot(t *testing.T) {
	for _, c := range []struct {
		env      map[string]string
		complete bool
		out      string
	}{
		{nil, true, "."},
		{map[string]string{"BENCH_ROUND": "2s"}, false, "out"},
		{map[string]string{"BENCH_ROUNDS": "1"}, false, "out"},
		{map[string]string{"BENCH_ONLY": "poison"}, false, "out"},
		{map[string]string{"BENCH_WAITING": "20000"}, false, "out"},
		{map[string]string{"BENCH_FAILING": "1000"}, false, "out"},
		{map[string]string{"BENCH_LETTERS": "1000"}, false, "out"},
		{map[string]string{"BENCH_ONLY": "poison", "BENCH_OUT": "x"}, false, "x"},
		{map[string]string{"BENCH_ROUND": "20s", "BENCH_ROUNDS": "5"}, false, "out"},
	} {
		s, err := readSettings(func(name string) string { return c.env[name] })
		if err != nil || s.complete != c.complete || s.to != c.out {
			t.Errorf("%v: complete %v into %q (%v), want %v into %q", c.env, s.complete, s.to, err, c.complete, c.out)
		}
	}
}

func TestAllBadSettingsAreNamed(t *testing.T) {
	bad := map[string]string{
		"BENCH_ROUND": "fast", "BENCH_ROUNDS": "0", "BENCH_ONLY": "vs_nobody", "BENCH_MINUTE": "-1s", "BENCH_WAITING": "-2",
		"BENCH_FAILING": "some", "BENCH_LETTERS": "0.5",
	}
	_, err := readSettings(func(name string) string { return bad[name] })
	for name, value := range bad {
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) {
			t.Errorf("the error does not name %s=%s: %v", name, value, err)
		}
	}
}
