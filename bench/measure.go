package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/rollbackd/rollbackd/bench/internal/figure"
	"github.com/rollbackd/rollbackd/bench/internal/ground"
	"github.com/rollbackd/rollbackd/bench/internal/report"
	"github.com/rollbackd/rollbackd/bench/internal/run"
)

// offered is how many messages a second the latency is measured at.
const offered = 1000

// warmUp is how long a round runs before it is measured, at most and as a part of the round.
const (
	warmUp       = time.Second
	warmUpOfPart = 5
)

// measureAll runs the cycles and writes the results after each, so that an interrupted run leaves something to look at.
func measureAll(ctx context.Context, s settings) (err error) {
	began := time.Now()
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	versions, err := r.Ground.Versions(ctx)
	if err != nil {
		return err
	}
	rep := report.Report{Started: began, Round: s.round, Complete: false, Servers: ground.Setup()}
	if rep.Machine, err = report.LookAround(ctx, versions); err != nil {
		return err
	}
	fmt.Println(rep.Machine)
	turns := &figure.Turns{}
	for rep.Cycles < s.rounds {
		fmt.Printf("cycle %d of %d, after %v\n", rep.Cycles+1, s.rounds, time.Since(began).Round(time.Second))
		if err := oneCycle(ctx, s, r, turns, &rep); err != nil {
			return err
		}
		rep.Cycles++
		each := time.Since(began) / time.Duration(rep.Cycles)
		fmt.Printf("%v a cycle: all will take about %v\n", each.Round(time.Second), (each*time.Duration(s.rounds) + s.ofMemory()).Round(time.Second))
		if err := s.write(&rep, turns, began); err != nil {
			return err
		}
	}
	if slices.Contains(s.only, figure.RSS) {
		m, err := r.Memory(ctx, s.backlog, s.minute)
		if err != nil {
			return err
		}
		rep.Memory = &m
	}
	rep.Complete = s.complete()
	if err := s.write(&rep, turns, began); err != nil {
		return err
	}
	fmt.Printf("%s", rep.Markdown())
	return nil
}

// ofMemory is about what the memory round takes, with its preparations.
func (s settings) ofMemory() time.Duration {
	if !slices.Contains(s.only, figure.RSS) {
		return 0
	}
	const preparations = time.Minute
	return 3*s.minute + preparations
}

func newRunner(ctx context.Context, s settings, o ground.Options) (*run.Runner, error) {
	g, err := ground.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &run.Runner{Ground: g, Length: s.round, Warm: min(warmUp, s.round/warmUpOfPart), LogRows: s.logRows, Out: os.Stdout}
	if err := r.Open(ctx); err != nil {
		return nil, errors.Join(err, r.Close(), g.Stop())
	}
	return r, nil
}

// oneCycle gives everybody one turn.
func oneCycle(ctx context.Context, s settings, r *run.Runner, turns *figure.Turns, rep *report.Report) error {
	for _, c := range figure.Cycle(s.only, rep.Cycles == 0) {
		round, err := r.Round(ctx, c)
		if err != nil {
			return err
		}
		turns.Rounds = append(turns.Rounds, round)
	}
	if slices.Contains(s.only, figure.LatencyP50) || slices.Contains(s.only, figure.LatencyP99) {
		l, err := r.Latency(ctx, offered)
		if err != nil {
			return err
		}
		rep.Latency = append(rep.Latency, l)
	}
	return nil
}

// write computes the figures of what there is so far.
func (s settings) write(rep *report.Report, turns *figure.Turns, began time.Time) error {
	rep.Took = time.Since(began)
	rep.Figures = turns.Figures(s.only)
	rep.Figures = append(rep.Figures, figure.LatencyFigures(rep.Latency)...)
	if rep.Memory != nil {
		rep.Figures = append(rep.Figures, figure.MemoryFigure(*rep.Memory))
	}
	rep.Contestants, rep.Curves, rep.Rounds = turns.Contestants(), turns.Curves(s.only), turns.Rounds
	return rep.Write(s.out)
}

// profile runs the daemon inside this process.
func profile(ctx context.Context, s settings) (err error) {
	r, err := newRunner(ctx, s, ground.Options{Log: os.Stdout, Statements: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(), r.Ground.Stop()) }()
	return r.Profile(ctx, run.Contestant{Name: figure.Base, Guess: 45_000}, "out")
}
