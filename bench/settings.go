package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
)

// settings are those of one run. What the variables set stands in the progress, so that only the same run goes on.
type settings struct {
	Round   time.Duration // how long a round is measured
	Rounds  int64         // how often everybody has a turn
	LogRows int64         // rows in the full consumer log
	Backlog int64         // of the memory round
	Minute  time.Duration // of the memory round
	Waiting int64         // messages of a round in which some fail
	Failing int64         // messages of a round in which all fail
	Letters int64         // that are replayed
	// YearRows is how many rows the year of retention has.
	YearRows int64
	Only     []string // figures and curves

	out      string
	complete bool // it is a result; anything less than the defaults is a trial
}

// readSettings reads the environment; all that is wrong is in the error. Results go into this folder, trials into out,
// so that a trial never overwrites a result.
func readSettings(env func(string) string) (settings, error) {
	var errs []error
	s := settings{complete: true}
	for name, count := range map[string]struct {
		into  *int64
		usual int64
	}{
		"BENCH_ROUNDS": {&s.Rounds, 3}, "BENCH_LOG_ROWS": {&s.LogRows, 5_000_000}, "BENCH_BACKLOG": {&s.Backlog, 1_000_000},
		"BENCH_WAITING": {&s.Waiting, 200_000}, "BENCH_FAILING": {&s.Failing, 10_000},
		"BENCH_LETTERS": {&s.Letters, 50_000}, "BENCH_YEAR_ROWS": {&s.YearRows, 20_000_000},
	} {
		text := cmp.Or(env(name), fmt.Sprint(count.usual))
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("%s=%q: want a number of 1 or more", name, text))
		}
		*count.into, s.complete = n, s.complete && n >= count.usual
	}
	for name, length := range map[string]struct {
		into  *time.Duration
		usual time.Duration
	}{
		"BENCH_ROUND": {&s.Round, 4 * time.Second}, "BENCH_MINUTE": {&s.Minute, time.Minute},
	} {
		text := cmp.Or(env(name), length.usual.String())
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			errs = append(errs, fmt.Errorf("%s=%q: want more than nothing, for example 5s", name, text))
		}
		*length.into, s.complete = d, s.complete && d >= length.usual
	}
	all := figure.Names()
	s.Only = strings.Split(cmp.Or(env("BENCH_ONLY"), strings.Join(all, ",")), ",")
	for _, name := range s.Only {
		if !slices.Contains(all, name) {
			errs = append(errs, fmt.Errorf("BENCH_ONLY: there is no figure %q; there are %s", name, strings.Join(all, ", ")))
		}
	}
	s.complete = s.complete && len(s.Only) == len(all)
	s.out = "out"
	if s.complete {
		s.out = "."
	}
	s.out = cmp.Or(env("BENCH_OUT"), s.out)
	return s, errors.Join(errs...)
}
