package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// settings are those of one run. What the variables set stands in the progress, so that only the same run goes on.
type settings struct {
	run.Sizes
	Rounds   int64    // how often everybody has a turn
	YearRows int64    // how many rows the year of retention has
	Only     []string // figures and curves

	to       string // the folder of the results
	complete bool   // it is a result; anything less than the defaults is a trial
}

// readSettings reads the environment; all that is wrong is in the error. Results go into this folder, trials into out,
// so that a trial never overwrites a result.
func readSettings(env func(string) string) (settings, error) {
	s, all := settings{complete: true, to: "."}, figure.Names()
	var only string
	vars := flag.NewFlagSet("", flag.ContinueOnError)
	vars.DurationVar(&s.Length, "BENCH_ROUND", 4*time.Second, "")
	vars.DurationVar(&s.Minute, "BENCH_MINUTE", time.Minute, "")
	vars.Int64Var(&s.Rounds, "BENCH_ROUNDS", 3, "")
	vars.Int64Var(&s.LogRows, "BENCH_LOG_ROWS", 5_000_000, "")
	vars.Int64Var(&s.Backlog, "BENCH_BACKLOG", 1_000_000, "")
	vars.Int64Var(&s.Waiting, "BENCH_WAITING", 200_000, "")
	vars.Int64Var(&s.Failing, "BENCH_FAILING", 10_000, "")
	vars.Int64Var(&s.Letters, "BENCH_LETTERS", 50_000, "")
	vars.Int64Var(&s.YearRows, "BENCH_YEAR_ROWS", 20_000_000, "")
	vars.StringVar(&only, "BENCH_ONLY", strings.Join(all, ","), "")
	var errs []error
	vars.VisitAll(func(f *flag.Flag) {
		text, usual := env(f.Name), number(f)
		if text == "" {
			return
		}
		if err := f.Value.Set(text); err != nil || number(f) <= 0 {
			errs = append(errs, fmt.Errorf("%s=%q: want more than nothing, such as %s", f.Name, text, f.DefValue))
		}
		s.complete = s.complete && number(f) >= usual
	})
	s.Only = strings.Split(only, ",")
	for _, name := range s.Only {
		if !slices.Contains(all, name) {
			errs = append(errs, fmt.Errorf("BENCH_ONLY: there is no figure %q; there are %s", name, strings.Join(all, ", ")))
		}
	}
	if s.complete = s.complete && len(s.Only) == len(all); !s.complete {
		s.to = "out"
	}
	s.to = cmp.Or(env("BENCH_OUT"), s.to)
	return s, errors.Join(errs...)
}

// number is a variable's value, to be compared with others; a text's is 1.
func number(f *flag.Flag) int64 {
	switch v := f.Value.(flag.Getter).Get().(type) {
	case int64:
		return v
	case time.Duration:
		return int64(v)
	}
	return 1
}
