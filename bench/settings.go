package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
)

// settings are those of one run.
type settings struct {
	round   time.Duration // how long a round is measured
	rounds  int           // how often everybody has a turn
	only    []string      // figures and curves
	out     string
	logRows int64         // rows in the full consumer log
	backlog int64         // of the memory round
	minute  time.Duration // of the memory round
	waiting int64         // messages of a round in which some fail
	failing int64         // messages of a round in which all fail
	letters int64         // that are replayed
}

const (
	// A result is one with rounds as long and as many as these, and with all figures; anything else is a trial.
	leastRound  = 10 * time.Second
	leastRounds = 3
	logRows     = 5_000_000
	backlog     = 1_000_000
	waiting     = 200_000
	failing     = 20_000
	letters     = 100_000
)

// complete reports whether the run is a result.
func (s settings) complete() bool {
	return s.round >= leastRound && s.rounds >= leastRounds && len(s.only) == len(figure.Names()) &&
		s.logRows >= logRows && s.backlog >= backlog && s.minute >= time.Minute &&
		s.waiting >= waiting && s.failing >= failing && s.letters >= letters
}

// readSettings reads the environment; all that is wrong is in the error. Results go into this folder, trials into out,
// so that a trial never overwrites a result.
func readSettings(env func(string) string) (settings, error) {
	var errs []error
	get := func(name, otherwise string, parse func(string) error) {
		text := env(name)
		if text == "" {
			text = otherwise
		}
		if err := parse(text); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", name, text, err))
		}
	}
	duration := func(into *time.Duration) func(string) error {
		return func(text string) (err error) {
			if *into, err = time.ParseDuration(text); err == nil && *into <= 0 {
				err = errors.New("want more than nothing, for example 10s")
			}
			return err
		}
	}
	count := func(into *int64) func(string) error {
		return func(text string) (err error) {
			if *into, err = strconv.ParseInt(text, 10, 64); err == nil && *into < 1 {
				err = errors.New("want 1 or more")
			}
			return err
		}
	}
	var s settings
	var rounds int64
	get("BENCH_ROUND", leastRound.String(), duration(&s.round))
	get("BENCH_ROUNDS", strconv.Itoa(leastRounds), count(&rounds))
	get("BENCH_LOG_ROWS", strconv.Itoa(logRows), count(&s.logRows))
	get("BENCH_BACKLOG", strconv.Itoa(backlog), count(&s.backlog))
	get("BENCH_WAITING", strconv.Itoa(waiting), count(&s.waiting))
	get("BENCH_FAILING", strconv.Itoa(failing), count(&s.failing))
	get("BENCH_LETTERS", strconv.Itoa(letters), count(&s.letters))
	get("BENCH_MINUTE", time.Minute.String(), duration(&s.minute))
	get("BENCH_ONLY", strings.Join(figure.Names(), ","), func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			if !slices.Contains(figure.Names(), name) {
				return fmt.Errorf("there is no figure %q; there are %s", name, strings.Join(figure.Names(), ", "))
			}
			s.only = append(s.only, name)
		}
		return nil
	})
	s.rounds = int(rounds)
	s.out = env("BENCH_OUT")
	if s.out == "" {
		s.out = "out"
		if s.complete() {
			s.out = "."
		}
	}
	return s, errors.Join(errs...)
}
